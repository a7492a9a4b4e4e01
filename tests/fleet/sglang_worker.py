"""One real SGLang scheduler of a fleet, spoken to by lines: prompts in, what happened to them out.

Runs in SGLang's own environment:  python -m tests.fleet.sglang_worker FOLDER
FOLDER is where its K/V events are published (events, replay).

A line is a JSON object: `tokens`; or `evict`, which empties its tree as a full pool would.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.integration.sglang import probes
from tests.integration.sglang.engines import Engine


def main() -> None:
    events = {
        "publisher": "zmq",
        "endpoint": f"ipc://{sys.argv[1]}/events",
        "replay_endpoint": f"ipc://{sys.argv[1]}/replay",
    }
    server = {"max_total_tokens": 16_384, "kv_events_config": json.dumps(events)}
    engine = Engine("reference", server=server)
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
        held = engine.call(probes.evictable)
        say({"cached": answer.cached_tokens, "semblend": answer.semblend, "held": held})
    engine.close()


def say(record: dict[str, Any]) -> None:
    print("@" + json.dumps(record, default=str), flush=True)


if __name__ == "__main__":
    main()
