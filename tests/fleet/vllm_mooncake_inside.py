"""Two real vLLM workers on machines of their own, which share donors through Mooncake Store.

    python -m tests.fleet.vllm_mooncake_inside FOLDER PYTHON MASTER-PROGRAM

Prints, as JSON, what each said of the same prompt: the one that had computed its document, and the
one that had never seen it.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.fleet.engines import MODEL
from tests.fleet.line_workers import LineWorker, line_worker
from tests.fleet.machines import Machines
from tests.fleet.mooncake_inside import listens
from tests.fleet.support import until

SETTINGS = {"SEMBLEND_TRANSPORT": "mooncake:master:50051"}
PACKAGES = ("nats", "mooncake")


def main() -> None:
    folder, python, program = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    machines = Machines(folder, "nats", "master", "vllm-a", "vllm-b")
    log = ["nats-server", "-js", "-sd", str(folder / "log")]
    machines.start("nats", log, env=os.environ)
    master = [program, "-port", "50051", "-metrics_port", "9103"]
    machines.start("master", master, env=os.environ)
    until(lambda: listens("nats", 4222) and listens("master", 50051), "NATS and Mooncake")
    with start(machines, "vllm-a", python) as owner, start(machines, "vllm-b", python) as other:
        document = text(1, 700)
        # Each learns how long its own prefill takes from a prompt of its own.
        ask(other, text(90, 900), salt="warm-up", hints={"reuse": False, "capture": False})
        ask(owner, [*text(10, 20), *document, 5, 6])
        for attempt in range(60):
            prompt = [*text(20 + attempt, 64), *document, 7, 8]
            theirs = ask(other, prompt, hints={"capture": False})
            if theirs["semblend"]["reused_tokens"]:
                break
        print(json.dumps({"theirs": theirs, "mine": ask(owner, prompt)}))


def start(machines: Machines, name: str, python: Path) -> Any:
    events = machines.folder / f"{name}-events"
    events.mkdir()
    return line_worker(
        python,
        *("tests.fleet.vllm_worker", str(MODEL), str(events)),
        worker_id=name,
        nats_url="nats://nats:4222",
        folder=machines.folder,
        packages=PACKAGES,
        on=partial(machines.command, name),
        **SETTINGS,
    )


def text(seed: int, size: int) -> list[int]:
    return np.random.default_rng(seed).integers(300, 4000, size).tolist()


def ask(worker: LineWorker, tokens: list[int], **more: Any) -> dict[str, Any]:
    return worker.ask({"tokens": tokens, **more})


if __name__ == "__main__":
    main()
