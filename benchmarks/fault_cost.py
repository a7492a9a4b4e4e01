"""What fault points cost while no fault is planted.

    python -m benchmarks.fault_cost --json

Counts the points that a lookup and a reused request reach, times one reach, and compares the
product with the time of the lookup and the prefill. The difference is too small to measure end
to end.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks.engine_soak import make_engine, tiny_model
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core import faults
from semblend.core.faults import FaultPoint, Planted, fault_point, reach
from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.pipeline import SemBlendPipeline

_REPEATS = 200_000


class Counting(Planted):
    """Plants nothing and counts."""

    def __init__(self) -> None:
        super().__init__(())
        self.reached = 0

    def fires(self, point: FaultPoint) -> bool:
        """Never."""
        self.reached += 1
        return False


@contextmanager
def counting() -> Iterator[Counting]:
    """Count every point reached in the block."""
    faults._planted = counter = Counting()
    try:
        yield counter
    finally:
        faults._planted = None


def reach_s() -> float:
    """Seconds per reach: the more expensive of the two ways, minus the surrounding call."""

    def nothing() -> None:
        return None

    pointed = fault_point(FaultPoint.PLAN)(nothing)

    def best(call: Callable[[], None]) -> float:
        return min(timeit.repeat(call, number=_REPEATS, repeat=7)) / _REPEATS

    return max(best(pointed) - best(nothing), best(lambda: reach(FaultPoint.PLAN)) - best(nothing))


def text(tokens: int, seed: int) -> TokenArray:
    """Token ids determined by the seed."""
    return np.random.default_rng(seed).integers(3, 500, tokens).astype(np.int32)


def lookup() -> tuple[int, float]:
    """Points reached and seconds taken by one lookup of 8,000 mostly known tokens."""
    settings = Settings(embedder=EmbedderKind.NONE, allow_uncertified=True)
    with SemBlendPipeline(settings) as pipeline:
        namespace = Namespace.of(model="m")
        document = np.random.default_rng(0).integers(3, 50_000, 7900).astype(np.int32)
        pipeline.register_donor("d", np.concatenate((text(50, 1), document)), namespace)
        target = np.concatenate((text(100, 2), document))
        with counting() as counter:
            pipeline.plan(target, namespace)
        seconds = []
        for _ in range(50):
            started = time.perf_counter()
            pipeline.plan(target, namespace)
            seconds.append(time.perf_counter() - started)
        return counter.reached, statistics.median(seconds)


def prefill() -> tuple[int, float]:
    """Points reached by one reused request of a tiny model, and its prefill in seconds."""
    engine = make_engine(tiny_model())
    document = text(400, 3)
    try:

        def answer(head: int, request_id: str) -> float:
            request = GenerationRequest(
                request_id=request_id,
                tokens=np.concatenate((text(30, head), document, text(5, head + 1))),
                namespace=engine.namespace(),
                sampling=SamplingParams(max_tokens=1),
                policy="none",
                donate=head == 10,
            )
            report = engine.submit(request).result().report
            engine.donors.wait()
            return report.prefill_ms / 1e3

        answer(10, "donor")
        with counting() as counter:
            answer(20, "counted")
        return counter.reached, statistics.median(answer(30 + n, f"r{n}") for n in range(20))
    finally:
        engine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = shlex.join(["python", "-m", "benchmarks.fault_cost", *sys.argv[1:]])
    report = BenchmarkReport("fault cost", command=command)
    each = reach_s()
    report.add("one point", "cost while off", each * 1e9, "ns")
    for case, measured in (("lookup of 8,000 tokens", lookup()), ("reused request", prefill())):
        reached, seconds = measured
        report.add(case, "points reached", reached, "points")
        report.add(case, "time", seconds * 1e3, "ms")
        report.add(case, "share of points", reached * each / seconds, "share", at_most=0.005)
    report.show(as_json=arguments.as_json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
