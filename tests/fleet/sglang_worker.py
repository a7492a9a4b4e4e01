"""One real SGLang scheduler of a fleet, spoken to by lines: prompts in, what happened to them out.

Runs in SGLang's own environment:  python -m tests.fleet.sglang_worker FOLDER
FOLDER is where its K/V events are published (events, replay).

A line is a JSON object: `tokens` with what else a request has; or `evict`, which empties its tree
as a full pool would: "alone" does so behind the adapter's back; or `flush`, SGLang's own. Every
answer tells the truth by then: the donors the tree holds whole, and its pages.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.fleet import sglang_probes
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
        said: dict[str, Any] = {}
        if "flush" in asked:
            engine.flush()
        elif "evict" in asked:
            alone = asked["evict"] == "alone"
            engine.call(probes.empty_the_tree_alone if alone else probes.empty_the_tree)
        else:
            answer = engine.run(asked.pop("tokens"), max_tokens=2, **asked)
            said = {"cached": answer.cached_tokens, "semblend": answer.semblend}
        engine.call(probes.wait_for_donors)
        said["donors"] = engine.call(probes.donors)
        said["whole"] = engine.call(sglang_probes.donors_whole)
        said["pages"] = engine.call(sglang_probes.pages)
        say(said)
    engine.close()


def say(record: dict[str, Any]) -> None:
    print("@" + json.dumps(record, default=str), flush=True)


if __name__ == "__main__":
    main()
