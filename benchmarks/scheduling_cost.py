"""CPU time that a long queue adds to a scheduler step.

    python -m benchmarks.scheduling_cost --json

A hundred prompts of 16K wait, all of them hits. The engine asks for each at every step and takes
none, which is the most expensive step. Measures the thread's own time (median of 30 steps).
Before each prompt the engine looks for a conversation that it continues, as vLLM's does.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.lookup_workloads import Writer
from semblend.core.tokens import TokenArray
from semblend.integration.isolation import by_salt
from semblend.integration.scheduler.engine_chains import EngineChains, Name
from semblend.integration.scheduler.engine_planner import Offer
from semblend.integration.scheduler.orders import StepOrders
from semblend.integration.scheduler.port import Step
from semblend.integration.scheduler.request import Request

if TYPE_CHECKING:
    from tests.integration.contract.toy_engine import Job

WAITING, STEPS, AT_MOST_MS = 100, 30, 2.0
DOCUMENTS, DOCUMENT_TOKENS, EACH_HAS = 8, 4_000, 4
CONVERSATIONS, BLOCK = 50, 16


class Names:
    """The toy engine's blocks by name, as conversations need them; none of them is cached."""

    total_blocks = 1_000_000

    def public_names(self, handle: Any) -> Sequence[Name]:
        return tuple(handle.hints()["names"])

    def public_name(self, handle: Any, number: int) -> Name | None:
        names = handle.hints()["names"]
        return names[number] if number < len(names) else None

    def names(self, handle: Any) -> Sequence[Name]:
        return self.public_names(handle)


def named(tokens: TokenArray) -> dict[str, list[Name]]:
    """New names for a prompt's whole blocks."""
    return {"names": [secrets.token_bytes(32) for _ in range(len(tokens) // BLOCK)]}


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
            tokens = np.concatenate(parts)
            self._jobs.append(Job(f"q{number}", tokens, None, named(tokens), []))
            self._side.arrived(self._jobs[-1])
        self._side.chains = EngineChains(
            port=Names(),  # type: ignore[arg-type]
            pipeline=self._side.planner.pipeline,
            block_size=BLOCK,
            max_turns=10,
            objection=lambda _: None,
        )

    def conversation(self) -> None:
        """A request that reused K/V ends, and no prompt continues it."""
        from tests.integration.contract.toy_engine import Job

        tokens = self._writer.text(int(self._writer.rng.integers(500, 16_000)))
        job = Job("c", tokens, None, named(tokens), [], outputs=[1] * 100)
        ended: Request[Any] = self._side._arrived(job)
        del self._side.requests["c"]
        ended.tainted = ended.was_loaded = True
        assert self._side.chains is not None
        self._side.chains.keep(ended)

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
        answers = []
        for job in self._jobs:
            self._side.before_lookup(job)
            answers.append(self._side.matched_tokens(job, 0))
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
        report.add(case, "CPU of the longest", max(times), "ms")

    def after_each(event: Callable[[], None]) -> list[float]:
        times = []
        for _ in range(STEPS):
            event()
            times.append(queue.step()[0])
        return times

    try:
        add("100 new prompts of 16K", [queue.step()[0] for _ in range(STEPS)])
        steps = STEPS
        while queue.step()[1]:
            steps += 1
        report.add("100 new prompts of 16K", "steps until all have a plan", steps + 1, "steps")
        add("all have a plan", [queue.step()[0] for _ in range(STEPS)])
        add("a donor came with every step", after_each(queue.donor))
        for _ in range(CONVERSATIONS):
            queue.conversation()
        add(f"{CONVERSATIONS} conversations are kept", [queue.step()[0] for _ in range(STEPS)])
        add("a conversation ended with every step", after_each(queue.conversation))
    finally:
        queue.engine.close()
    report.show(as_json=arguments.as_json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
