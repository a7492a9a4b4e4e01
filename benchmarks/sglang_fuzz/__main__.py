"""Real SGLang with the backend under hits, misses, bursts, aborts, retraction and faults.

    .venv-sglang/bin/python -m benchmarks.sglang_fuzz --requests 60
    .venv-sglang/bin/python -m benchmarks.sglang_fuzz --break load       # has to fail

SGLang's scheduler, overlap loop and tree in a process of their own, with greedy answers. Requests
come from the quality workloads (donors and targets), and repeat, continue and share prefixes with
each other; some have reuse off. Prompts are computed in chunks, the pool is too small for
everything that runs, SGLang retracts what runs, some requests are aborted, and every fault point
fails in one of fifty reaches, each for a while more often. Afterwards, in a quiet engine, every
answer is compared with its prompt computed cold, or, if a load was confirmed, with the same load
repeated. With TEST_SGLANG_DEVICE=cuda it runs on a GPU in bfloat16, with SGLang's defaults there.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from semblend.core.faults import FaultPoint

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "models" / "semblend-reference-27m"
POINTS = (
    FaultPoint.INDEX_WRITE,
    FaultPoint.KILLED_WORKER,
    FaultPoint.INDEX_READ,
    FaultPoint.PLAN,
    FaultPoint.LEASE,
    FaultPoint.POOL,
    FaultPoint.COPY,
    FaultPoint.NESTED_PASS,
)
"""Donors' K/V stays in SGLang's tree: tiers, checksums and disks are no boundaries here."""


def main() -> int:
    """Fuzz and report; 1 if something is wrong."""
    options = _arguments()
    os.environ.update(HF_HUB_OFFLINE="1", SEMBLEND_SHADOW_RATE="0")
    os.environ.setdefault("TEST_SGLANG_LOG", "WARNING" if options.verbose else "CRITICAL")
    logging.basicConfig(level="ERROR")
    from benchmarks.engine_fuzz.reporting import fuzz_engine, longest
    from benchmarks.sglang_fuzz.engine import EngineOptions, SglangFuzzEngine

    started = time.monotonic()
    engine = SglangFuzzEngine(
        EngineOptions(
            model=options.model,
            mode=options.mode,
            policy=next(iter(options.policies), None),
            step_tokens=options.step_tokens,
            kv_tokens=options.kv_tokens,
            longest=longest(options),
            running=options.in_flight,
        )
    )
    report, troubles = fuzz_engine(
        engine, options, name="sglang_fuzz", case=options.mode, points=POINTS, started=started
    )
    report.command = shlex.join(["python", "-m", "benchmarks.sglang_fuzz", *sys.argv[1:]])
    for trouble in troubles[: options.show]:
        print(trouble, file=sys.stderr)
    report.show(as_json=options.json)
    return 1 if report.failed else 0


def _arguments() -> argparse.Namespace:
    gpu = os.environ.get("TEST_SGLANG_DEVICE") == "cuda"
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sglang_fuzz",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--requests", type=int, default=1000 if gpu else 80)
    add("--model", type=Path, default=REFERENCE)
    add("--mode", default="segmented", choices=("segmented", "segmented_experimental"))
    add("--policies", nargs="*", default=[], help="for segmented_experimental: the one to use")
    add("--seed", type=int, default=0)
    add("--lengths", type=int, nargs="+", default=[512, 1024, 2048] if gpu else [512])
    add("--in-flight", type=int, default=32 if gpu else 5)
    add("--step-tokens", type=int, default=1024 if gpu else 512, help="chunked_prefill_size")
    add("--kv-tokens", type=int, default=32768 if gpu else 16384, help="size of the pool")
    add("--faults", type=float, default=0.02, help="share of reaches that fail; 0 plants none")
    add("--margin", type=float, default=0.25 if gpu else 1e-3, help="nats that count as a tie")
    add("--break", dest="broken", choices=("load",), help="spoil one load; the fuzz must detect it")
    add("--show", type=int, default=20, help="problems to print")
    add("--verbose", action="store_true", help="also print the backend's log")
    add("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
