"""CPU time of planning a hit, on the scheduler's thread.

    python -m benchmarks.planning_cost --json

Measures the thread's own time (median of 30), so that other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.lookup_workloads import Workload, Writer, new_instruction, word_edits
from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.pipeline import SemBlendPipeline

REPEATS = 30
OTHER_DONORS, OTHER_TOKENS = 40, 4_000
"""Donors nobody asks for, so that the index is not empty."""


def composition(writer: Writer, documents: int, tokens: int) -> Workload:
    """One prompt with this many documents, each from a different donor."""
    texts = [writer.text(tokens) for _ in range(documents)]
    return Workload(
        name=f"{documents} documents, {documents * tokens} tokens",
        donors=tuple(np.concatenate((writer.text(60), text)) for text in texts),
        target=np.concatenate((writer.text(100), *texts, writer.text(64))),
    )


def miss(writer: Writer, tokens: int) -> Workload:
    """A prompt that shares nothing with any donor."""
    return Workload(name=f"miss, {tokens} tokens", donors=(), target=writer.text(tokens))


def repeated(writer: Writer, period: int, tokens: int) -> Workload:
    """Text that repeats itself: it matches itself at every multiple of its period."""
    text = np.tile(writer.text(period), tokens // period)
    return Workload(
        name=f"period of {period}, {tokens} tokens",
        donors=(np.concatenate((writer.text(60), text)),),
        target=np.concatenate((writer.text(100), text)),
    )


CASES: tuple[tuple[Callable[[Writer], Workload], str, float], ...] = (
    (lambda w: new_instruction(w, 2_000), "none", 0.8),
    (lambda w: new_instruction(w, 8_000), "none", 1.0),
    (lambda w: new_instruction(w, 32_000), "none", 2.5),
    (lambda w: new_instruction(w, 32_000), "span_head(32)", 2.5),
    (lambda w: composition(w, 10, 3_200), "none", 2.5),
    (lambda w: word_edits(w, 0.01, 32_000), "none", 8.0),
    (lambda w: miss(w, 32_000), "none", 2.5),
    (lambda w: repeated(w, 1, 32_000), "none", 30.0),
    (lambda w: repeated(w, 64, 32_000), "none", 50.0),
)
"""Workload, policy, and the maximum milliseconds."""


def cpu_ms(workload: Workload, policy: str) -> float:
    """Median CPU milliseconds of one plan."""
    settings = Settings(embedder=EmbedderKind.NONE, allow_uncertified=True, recompute_policy=policy)
    with SemBlendPipeline(settings) as pipeline:
        namespace, writer = Namespace.of(model="m"), Writer(99)
        for number in range(OTHER_DONORS):
            pipeline.register_donor(f"other {number}", writer.text(OTHER_TOKENS), namespace)
        for number, donor in enumerate(workload.donors):
            pipeline.register_donor(f"donor {number}", donor, namespace)
        found = pipeline.plan(workload.target, namespace, block_size=16)
        if bool(workload.donors) != found.executable:
            raise SystemExit(f"{workload.name}: the plan says {found.reason}")
        seconds = []
        for _ in range(REPEATS):
            started = time.thread_time()
            pipeline.plan(workload.target, namespace, block_size=16)
            seconds.append(time.thread_time() - started)
        return statistics.median(seconds) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.planning_cost", *sys.argv[1:]])
    report = BenchmarkReport("planning cost", command=command)
    for number, (make, policy, at_most) in enumerate(CASES):
        workload = make(Writer(number))
        case = workload.name if policy == "none" else f"{workload.name}, {policy}"
        report.add(case, "CPU of a plan", cpu_ms(workload, policy), "ms", at_most=at_most)
    report.show(as_json=arguments.as_json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
