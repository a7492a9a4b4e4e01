"""CPU time that a long queue adds to a scheduler step.

    python -m benchmarks.scheduling_cost --json

A hundred prompts of 16K wait, all of them hits. The engine asks for each at every step and takes
none, which is the most expensive step. Measures the thread's own time (median of 30 steps).
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.lookup_workloads import Writer
from semblend.core.tokens import TokenArray
from semblend.integration.isolation import by_salt
from semblend.integration.scheduler.engine_planner import Offer
from semblend.integration.scheduler.orders import StepOrders
from semblend.integration.scheduler.port import Step

if TYPE_CHECKING:
    from tests.integration.contract.toy_engine import Job

WAITING, STEPS, AT_MOST_MS = 100, 30, 2.0
DOCUMENTS, DOCUMENT_TOKENS, EACH_HAS = 8, 4_000, 4


class Queue:
    """Prompts of four known documents each, waiting in the tests' toy engine."""

    def __init__(self) -> None:
        from tests.integration.contract.toy_engine import Job, ToyEngine

        self._writer = Writer(1)
        self.engine = ToyEngine()
        self._side = self.engine.scheduler
        documents = [self._writer.text(DOCUMENT_TOKENS) for _ in range(DOCUMENTS)]
        for document in documents:
            self.donor(np.concatenate((self._writer.text(50), document)))
        self._jobs: list[Job] = []
        for number in range(WAITING):
            chosen = self._writer.rng.permutation(DOCUMENTS)[:EACH_HAS]
            parts = (self._writer.text(100), *(documents[i] for i in chosen), self._writer.text(64))
            self._jobs.append(Job(f"q{number}", np.concatenate(parts), None, {}, []))
            self._side.arrived(self._jobs[-1])

    def donor(self, tokens: TokenArray | None = None) -> None:
        """Add a donor; by default one that no prompt shares anything with."""
        name = f"d{self._side.planner.generation}"
        namespace = self._side.setup.namespace.with_parts(cache_salt=by_salt(None))
        tokens = self._writer.text(500) if tokens is None else tokens
        self._side.planner.register(
            Offer(donor_id=name, request_id=name, tokens=tokens, namespace=namespace, blocks=1)
        )

    def step(self) -> tuple[float, int]:
        """CPU milliseconds of one step, and how many prompts have no answer yet."""
        started = time.thread_time()
        answers = [self._side.matched_tokens(job, 0) for job in self._jobs]
        self._side.fill(StepOrders(), Step(idle=True))
        return (time.thread_time() - started) * 1e3, answers.count(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.scheduling_cost", *sys.argv[1:]])
    report = BenchmarkReport("scheduling cost", command=command)
    queue = Queue()

    def add(case: str, times: list[float]) -> None:
        report.add(case, "CPU of a step", statistics.median(times), "ms", at_most=AT_MOST_MS)

    try:
        add("100 new prompts of 16K", [queue.step()[0] for _ in range(STEPS)])
        steps = STEPS
        while queue.step()[1]:
            steps += 1
        report.add("100 new prompts of 16K", "steps until all have a plan", steps + 1, "steps")
        add("all have a plan", [queue.step()[0] for _ in range(STEPS)])
        times = []
        for _ in range(STEPS):
            queue.donor()
            times.append(queue.step()[0])
        add("a donor came with every step", times)
    finally:
        queue.engine.close()
    report.show(as_json=arguments.as_json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
