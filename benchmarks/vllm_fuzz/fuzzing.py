"""One fuzz run of vLLM."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

from benchmarks.engine_fuzz.reporting import fuzz_engine, longest
from benchmarks.vllm_fuzz.engine import EngineOptions, VllmFuzzEngine
from benchmarks.vllm_runners import Scheduling
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.faults import FaultPoint

POINTS = tuple(
    point
    for point in FaultPoint
    # vLLM's own pool allocates blocks before asking us; the others belong to the fleet.
    if point
    not in (
        FaultPoint.POOL,
        FaultPoint.TRANSPORT_READ,
        FaultPoint.TRANSPORT_WRITE,
        FaultPoint.EVENT_BUS,
    )
)


def fuzz(options: argparse.Namespace, folder: Path) -> tuple[BenchmarkReport, list[str]]:
    """Fuzz vLLM; return the report and every problem in words."""
    engine_options = EngineOptions(
        model=options.model,
        mode=options.mode,
        policy=next(iter(options.policies), None),
        scheduling=Scheduling(options.scheduling),
        step_tokens=options.step_tokens,
        kv_tokens=options.kv_tokens,
        longest=longest(options),
        running=options.in_flight,
        donor_folder=folder,
    )
    if not options.verbose:  # hundreds of faults, each with its traceback
        for name in ("vllm.semblend", "semblend"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    started = time.monotonic()
    exact = options.mode == "exact_prefix"
    return fuzz_engine(
        VllmFuzzEngine(engine_options),
        options,
        name="vllm_fuzz",
        case=f"{options.runner} {options.scheduling} {options.mode}",
        points=[p for p in POINTS if not exact or p is not FaultPoint.NESTED_PASS],
        started=started,
    )
