"""Reuse under load and over time, against what people would use instead: one command.

    python -m benchmarks.evidence --machine cpu --output results/evidence-cpu --minutes 15
    python -m benchmarks.evidence --machine gpu --model FOLDER --output results/evidence-gpu

Measures every arm on every workload at rising rates (open loop, Poisson arrivals) until the 99th
percentile of the time to the first token exceeds the limit. It stops when its time is up, and
`--resume` goes on. Figures, plots and the page are made from what has been measured so far.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from benchmarks.evidence.arms import ARMS, BY_NAME, Machine
from benchmarks.evidence.cells import all_cells
from benchmarks.evidence.page import busy, write_page
from benchmarks.evidence.plots import NOTHING, draw
from benchmarks.evidence.running import Run, measure, reasons_of
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.table import report_of
from benchmarks.evidence.workloads import WORKLOADS
from sembench.errors import SemBenchError

REFERENCE = "models/semblend-reference-27m"
SWEPT = [name for name in WORKLOADS if name != "over_time"]
DEFAULTS = {
    Machine.CPU: {"tokens": 1024, "rate": 0.4, "cache": 1.0, "host": 1.0},
    Machine.GPU: {"tokens": 8192, "rate": 2.0, "cache": 24.0, "host": 48.0},
}
"""Prompt tokens, first rate, and GiB of K/V on the device and in host memory."""


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    flags = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = flags.add_argument
    add("--machine", type=Machine, choices=[*Machine], required=True)
    add("--model", default=REFERENCE, help="a folder that vLLM loads")
    add("--tokenizer", help="where the model has none (random weights); default: the model")
    add("--output", type=Path, required=True, help="folder of this run's cells")
    add("--resume", action="store_true", help="go on with a run that was stopped")
    add("--minutes", type=float, help="start no cell after this long")
    add("--arms", nargs="+", choices=list(BY_NAME), default=[arm.name for arm in ARMS])
    add("--workloads", nargs="+", choices=SWEPT, default=SWEPT)
    add("--requests", type=int, default=500, help="per rate")
    add("--warm-up", type=int, default=0, help="requests before each rate, in no figure")
    add("--seeds", type=int, default=3)
    add("--tokens", type=int, help="length of prompts, about")
    add("--max-tokens", type=int, default=16)
    add("--limit-ms", type=float, default=2000.0, help="99th percentile of TTFT that passes")
    add("--rate", type=float, help="first rate, requests per second")
    add("--rate-factor", type=float, default=1.5)
    add("--rate-most", type=int, default=8)
    add("--rate-refine", type=int, default=1)
    add("--over-time", type=int, default=1000, help="requests of the series over time; 0: none")
    add("--cache-gib", type=float, help="the engine's K/V cache, the same for every arm")
    add("--host-gib", type=float, help="host memory of arms that keep K/V there")
    add("--threads", type=int, default=2, help="of the engine, on a CPU")
    add("--uncertified", action="store_true", help="the model has no certificate in this package")
    add("--vllm-python", default=".venv-vllm/bin/python", help="Python with vLLM")
    add("--lmcache", default="", help="folder to import LMCache from")
    add("--page", type=Path, help="also write the page of this run, with its plots beside it")
    add("--report-only", action="store_true", help="measure nothing")
    add("--json", action="store_true")
    return flags


def settings_of(chosen: argparse.Namespace) -> Settings:
    """What the flags say, with the machine's defaults."""
    defaults = DEFAULTS[chosen.machine]

    def gib(value: float | None, name: str) -> int:
        return int((defaults[name] if value is None else value) * (1 << 30))

    return Settings(
        machine=chosen.machine,
        model=chosen.model,
        tokenizer=chosen.tokenizer or chosen.model,
        tokens=chosen.tokens or int(defaults["tokens"]),
        requests=chosen.requests,
        max_tokens=chosen.max_tokens,
        seeds=chosen.seeds,
        limit_ms=chosen.limit_ms,
        rate_start=chosen.rate or defaults["rate"],
        rate_factor=chosen.rate_factor,
        rate_most=chosen.rate_most,
        rate_refine=chosen.rate_refine,
        over_time=chosen.over_time,
        cache_bytes=gib(chosen.cache_gib, "cache"),
        host_bytes=gib(chosen.host_gib, "host"),
        threads=chosen.threads,
        certified=not chosen.uncertified,
        warm_up=chosen.warm_up,
    )


def main(arguments: list[str]) -> int:
    """Measure and report; 1 if a target is missed, 3 if something is left to measure."""
    chosen = parser().parse_args(arguments)
    folder = chosen.output.resolve()
    complete = True
    if chosen.report_only:
        settings = Settings.read(folder)
    else:
        settings = settings_of(chosen)
        settings.begin(folder, resume=chosen.resume)
        complete = measure(
            Run(
                folder=folder,
                settings=settings,
                arms=[BY_NAME[name] for name in chosen.arms],
                workloads=chosen.workloads,
                python=chosen.vllm_python,
                path=[chosen.lmcache] if chosen.lmcache else [],
                until=time.time() + chosen.minutes * 60 if chosen.minutes else float("inf"),
            )
        )
    cells, reasons = all_cells(folder), reasons_of(folder)
    report = report_of(cells, settings)
    report.command = shlex.join(["python", "-m", "benchmarks.evidence", *arguments])
    (folder / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
    if chosen.page is not None:
        pictures = NOTHING if busy(cells) else draw(cells, settings, chosen.page.parent / "images")
        write_page(chosen.page, cells, settings, report, reasons, pictures)
    for name, reason in reasons.items():
        print(f"{name}: {reason}", file=sys.stderr)
    report.show(as_json=chosen.json)
    if not complete:
        return 3
    return 1 if report.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SemBenchError as error:
        sys.exit(f"error: {error}")
