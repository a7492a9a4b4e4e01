"""The adapter keeps the promises of every adapter (tests/integration/contract).

On the simulated executor. What other engines do with one request is a ladder here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from semblend.core.tokens import TokenArray
from semblend.integration.trtllm import connector
from tests.integration.contract.promises import Promises
from tests.integration.models import plain_model
from tests.integration.trtllm.engines import BLOCK, Maker
from tests.integration.trtllm.executor import Executor
from tests.integration.trtllm.generations import NEWER, LlmRequest


class Rewriting(connector.SemBlendKvConnectorScheduler):
    """A scheduler whose plans pass through a test's function."""

    rewriting: Any = None

    def rewrite_plan(self, plan: Any, tokens: TokenArray) -> Any:
        return plan if self.rewriting is None else self.rewriting(plan, tokens)


@dataclass(frozen=True)
class Answered:
    tokens: tuple[int, ...]
    kv: torch.Tensor
    cached_tokens: int
    semblend: dict[str, Any]


def watched(executor: Executor) -> dict[int, tuple[torch.Tensor, int]]:
    """K/V of every prompt [layers, 2, tokens, heads, dim] and its engine's own hit, at its end."""
    seen: dict[int, tuple[torch.Tensor, int]] = {}
    hits: dict[int, int] = {}
    match, terminate = executor.blocks.match, executor._terminate

    def matching(request: LlmRequest) -> list[int]:
        found = match(request)
        hits[request.request_id] = len(found) * BLOCK
        return found

    def terminating(request: LlmRequest) -> None:
        kv = executor.paged.read(request.block_ids, request.prompt_len).transpose(2, 3)
        seen[request.request_id] = kv, hits[request.request_id]
        terminate(request)

    executor.blocks.match, executor._terminate = matching, terminating
    return seen


class Trtllm:
    """An engine of these tests in the words of `promises`."""

    def __init__(self, make: Maker) -> None:
        self._engine = make(
            connector=SimpleNamespace(
                SemBlendKvConnectorScheduler=Rewriting,
                SemBlendKvConnectorWorker=connector.SemBlendKvConnectorWorker,
            ),
        )
        # A rung whose load fails is computed on what is there, then thrown away.
        self._engine.executor.paged.pools[0].zero_()
        self._seen = watched(self._engine.executor)

    @property
    def rewrite(self) -> Any:
        return self._engine.scheduler.rewriting

    @rewrite.setter
    def rewrite(self, function: Any) -> None:
        self._engine.scheduler.rewriting = function

    def run(
        self, tokens: TokenArray, *, salt: str | None = None, hints: dict[str, Any] | None = None
    ) -> Answered:
        hints, kept = hints or {}, len(self._engine.records("donor_registered"))
        if hints.get("reuse") is False:
            request = self._engine.run(tokens, cache_salt=salt)
            number, output, reused = request.request_id, request.generated, 0
        else:
            answer = asyncio.run(self._engine.ladder(tokens, cache_salt=salt))
            number, output = answer.output.request_id, answer.output.token_ids
            reused = answer.report["reused_tokens"]
        self._engine.settle()
        if hints.get("capture") is False:  # a request cannot say so here
            for record in self._engine.records("donor_registered")[kept:]:
                self._engine.scheduler.side.planner.drop(record["donor_id"])
        kv, hit = self._seen[number]
        # Ladders hit the rungs below them: that is their own K/V, no exact prefix.
        exact = 0 if reused else hit
        said = {
            "outcome": "materialised" if reused else "computed",
            "approximate": reused > 0,
            "exact_tokens": exact,
            "reused_tokens": reused,
        }
        return Answered(tuple(output), kv, exact + reused, said)

    def cold(self, tokens: TokenArray) -> Answered:
        executor = Executor(plain_model("llama"), generation=NEWER, block_size=BLOCK)
        seen = watched(executor)
        request = executor.run(tokens, max_new_tokens=4)
        return Answered(tuple(request.generated), seen[request.request_id][0], 0, {})

    def donate(self, tokens: TokenArray, **options: Any) -> Answered:
        answer = self.run(tokens, hints={"reuse": False}, **options)
        self.forget_prefixes()
        return answer

    def kv(self, answer: Answered, start: int, end: int) -> torch.Tensor:
        return answer.kv[:, :, start:end]

    def forget_prefixes(self) -> None:
        self._engine.executor.blocks.forget_cached()

    def totals(self) -> Any:
        return self._engine.ledger.totals()

    def donors(self) -> int:
        return int(self._engine.scheduler.side.planner.pipeline.stats().donors)


@pytest.fixture
def engine(make: Maker) -> Trtllm:
    return Trtllm(make)


class TestTrtllm(Promises):
    """Every promise."""

    NO_SUCH_FAULT: ClassVar[dict[str, str]] = {
        "nested_pass": "holes are computed by ordinary requests"
    }
