"""The toy engine of docs/write-an-adapter.md keeps every promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from semblend.core.ledger import LedgerTotals
from semblend.core.tokens import TokenArray
from tests.integration.contract.promises import DONOR, TARGET, Promises
from tests.integration.contract.toy_engine import Job, ToyEngine

_SALTS = itertools.count(1)


@dataclass(frozen=True)
class ToyAnswer:
    job: Job
    tokens: tuple[int, ...]
    cached_tokens: int
    semblend: dict[str, Any]


class Toy:
    """The toy engine in the words of `promises`."""

    def __init__(self, **settings: Any) -> None:
        self.engine = ToyEngine(**settings)

    @property
    def rewrite(self) -> Any:
        return self.engine.rewriting

    @rewrite.setter
    def rewrite(self, rewriting: Any) -> None:
        self.engine.rewriting = rewriting

    def run(
        self, tokens: TokenArray, *, salt: str | None = None, hints: dict[str, Any] | None = None
    ) -> ToyAnswer:
        job, said = self.engine.serve(tokens, salt=salt, hints=hints or {}, new_tokens=6)
        return ToyAnswer(job, tuple(job.outputs), job.cached_tokens, said)

    def cold(self, tokens: TokenArray) -> ToyAnswer:
        return self.run(
            tokens, salt=f"cold-{next(_SALTS)}", hints={"reuse": False, "capture": False}
        )

    def donate(self, tokens: TokenArray, **options: Any) -> ToyAnswer:
        answer = self.run(tokens, hints={"reuse": False}, **options)
        self.forget_prefixes()
        return answer

    def kv(self, answer: ToyAnswer, start: int, end: int) -> torch.Tensor:
        return self.engine.cache.read(answer.job.blocks, start, end)

    def forget_prefixes(self) -> None:
        self.engine.forget_prefixes()

    def totals(self) -> LedgerTotals:
        return self.engine.scheduler.planner.pipeline.ledger.totals()

    def donors(self) -> int:
        return self.engine.scheduler.planner.pipeline.stats().donors


@pytest.fixture
def engine() -> Iterator[Toy]:
    toy = Toy()
    yield toy
    toy.engine.close()


class TestToyEngine(Promises):
    """Every promise."""


def test_a_policy_that_looks_first_is_asked(engine: Toy) -> None:
    engine.donate(DONOR)
    answer = engine.run(TARGET, hints={"policy": "query_attention(0.2)"})
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend["recomputed_tokens"] > 0


def test_samples_are_computed_cold_in_idle_steps() -> None:
    toy = Toy(shadow_rate=1.0)
    toy.donate(DONOR)
    assert toy.run(TARGET).semblend["outcome"] == "materialised"
    shadows = toy.engine.scheduler.shadows
    assert shadows is not None
    from semblend.integration.scheduler.orders import StepOrders

    for _ in range(50):
        if not shadows.has_pending_work:
            break
        toy.engine.step(StepOrders())
    assert shadows.watch.stats().samples == 1
    toy.engine.close()
