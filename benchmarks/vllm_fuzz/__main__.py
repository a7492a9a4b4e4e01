"""Real vLLM with the connector under hits, misses, bursts, aborts, preemption and faults.

    .venv-vllm/bin/python -m benchmarks.vllm_fuzz --requests 60
    .venv-vllm/bin/python -m benchmarks.vllm_fuzz --runner v2 --scheduling async --json
    .venv-vllm/bin/python -m benchmarks.vllm_fuzz --break load       # has to fail

One engine in this process, with greedy answers. Requests come from the quality workloads (donors
and targets), and repeat, continue and share prefixes with each other; some have reuse off.
Prompts are computed in chunks, the K/V cache is too small for everything that runs, some requests
are aborted, and every fault point fails in one of fifty reaches, each for a while more often.
Afterwards, in a quiet engine, every answer is compared with its prompt computed cold, or, if a
load was confirmed, with the same load repeated. On a GPU it uses bfloat16 and vLLM's own
defaults, on a CPU float32; --runner and --scheduling choose either of vLLM's two anywhere.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.vllm_runners import Runner, Scheduling, on_gpu, prepare

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "models" / "semblend-reference-27m"


def main() -> int:
    """Fuzz and report; 1 if something is wrong."""
    options = _arguments()
    _environment(options)
    prepare(Runner(options.runner), Scheduling(options.scheduling))
    from benchmarks.vllm_fuzz.fuzzing import fuzz

    out = sys.stdout
    sys.stdout = sys.stderr  # standard output is for the report only
    with tempfile.TemporaryDirectory() as folder:
        report, troubles = fuzz(options, Path(folder))
    sys.stdout = out
    report.command = shlex.join(["python", "-m", "benchmarks.vllm_fuzz", *sys.argv[1:]])
    for trouble in troubles[: options.show]:
        print(trouble, file=sys.stderr)
    report.show(as_json=options.json)
    return 1 if report.failed else 0


def _environment(options: argparse.Namespace) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        SEMBLEND_MEASURE_SPEED="0",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        SEMBLEND_SHADOW_RATE=str(options.shadow_rate),
    )
    defaults = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_WAIT_POLICY": "passive",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _arguments() -> argparse.Namespace:
    gpu = on_gpu()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vllm_fuzz",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--requests", type=int, default=2000 if gpu else 60)
    add("--model", type=Path, default=REFERENCE)
    add(
        "--mode",
        default="segmented",
        choices=("segmented", "segmented_experimental", "exact_prefix"),
    )
    add("--policies", nargs="*", default=[], help="for segmented_experimental; the first for all")
    add("--runner", default="v2" if gpu else "v1", choices=[*Runner])
    add("--scheduling", default="async" if gpu else "sync", choices=[*Scheduling])
    add("--seed", type=int, default=0)
    add("--lengths", type=int, nargs="+", default=[512, 1024, 2048] if gpu else [512, 1024])
    add("--in-flight", type=int, default=32 if gpu else 12)
    add("--step-tokens", type=int, default=1024 if gpu else 512, help="max_num_batched_tokens")
    add("--kv-tokens", type=int, default=6144 if gpu else 2048, help="size of the K/V cache")
    add("--faults", type=float, default=0.02, help="share of reaches that fail; 0 plants none")
    add("--shadow-rate", type=float, default=0.02)
    add("--margin", type=float, default=0.25 if gpu else 1e-3, help="nats that count as a tie")
    add("--break", dest="broken", choices=("load",), help="spoil one load; the fuzz must detect it")
    add("--show", type=int, default=20, help="problems to print")
    add("--verbose", action="store_true", help="also print the connector's log")
    add("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
