"""One real SGLang scheduler of a fleet, spoken to by lines: prompts in, what happened to them out.

Runs in SGLang's own environment:  python -m tests.fleet.sglang_worker

A line is a JSON object: `tokens`; or `evict`, which empties its tree as a full pool would.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.integration.sglang import probes
from tests.integration.sglang.engines import Engine


def main() -> None:
    engine = Engine("reference", server={"max_total_tokens": 16_384})
    say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "evict" in asked:
            engine.call(probes.empty_the_tree)
            engine.call(probes.wait_for_donors)
            say({"donors": engine.call(probes.donors)})
            continue
        answer = engine.run(asked["tokens"], max_tokens=2)
        engine.call(probes.wait_for_donors)
        say({"cached": answer.cached_tokens, "semblend": answer.semblend})
    engine.close()


def say(record: dict[str, Any]) -> None:
    print("@" + json.dumps(record, default=str), flush=True)


if __name__ == "__main__":
    main()
