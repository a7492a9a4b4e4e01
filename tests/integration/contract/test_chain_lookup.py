"""Requests that wait are asked for at every step: looking for chains must cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from semblend.core.account import Accounts
from semblend.core.ledger import Ledger
from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.engine_chains import _LATEST, EngineChains, Name
from semblend.integration.scheduler.request import Arrival, Request
from semblend.pipeline import SemBlendPipeline
from tests.integration.models import joined, random_tokens

BLOCK = 16


def names_of(tokens: TokenArray) -> tuple[Name, ...]:
    """A name stands for all tokens before it."""
    return tuple(tokens[: (number + 1) * BLOCK].tobytes() for number in range(len(tokens) // BLOCK))


@dataclass
class Handle:
    tokens: TokenArray
    outputs: Sequence[int] = ()
    taken: tuple[Name, ...] = ()

    @property
    def output_tokens(self) -> Sequence[int]:
        return self.outputs


@dataclass
class Names:
    """An engine whose cache holds whatever is asked for under a private name."""

    total_blocks: int = 1_000
    looked: int = 0
    private: set[Name] = field(default_factory=set)

    def public_names(self, handle: Handle) -> Sequence[Name]:
        self.looked += 1
        return names_of(handle.tokens)

    def public_name(self, handle: Handle, number: int) -> Name | None:
        names = names_of(handle.tokens)
        return names[number] if number < len(names) else None

    def names(self, handle: Handle) -> Sequence[Name]:
        tokens = joined(handle.tokens, np.asarray(handle.outputs, dtype=np.int32))
        names = tuple(b"private" + name for name in names_of(tokens))
        self.private.update(names)
        return names

    def cached(self, names: Sequence[Name]) -> int:
        return sum(name in self.private for name in names)

    def take_over(self, handle: Handle, first: int, names: Sequence[Name]) -> None:
        handle.taken = tuple(names)

    def give_up(self, handle: Handle) -> None:
        handle.taken = ()


class Waiting:
    """Requests before an engine that keeps chains."""

    def __init__(self) -> None:
        self.port = Names()
        pipeline = SemBlendPipeline(Settings(embedder="none", allow_uncertified=True))
        self.chains = EngineChains(
            port=self.port,  # type: ignore[arg-type]
            pipeline=pipeline,
            block_size=BLOCK,
            max_turns=10,
            objection=lambda _: None,
        )

    def request(self, tokens: TokenArray, answer: Sequence[int] = ()) -> Request[Any]:
        arrival = Arrival(
            request_id="r",
            handle=Handle(tokens, answer),
            tokens=tokens,
            namespace=Namespace.of(model="m"),
        )
        account = Accounts(ledger=Ledger()).open("r", prompt_tokens=len(tokens))
        return Request(arrival, account)

    def ended(self, tokens: TokenArray, answer: TokenArray) -> None:
        """A request that reused K/V ends."""
        request = self.request(tokens, answer.tolist())
        request.tainted = request.was_loaded = True
        assert self.chains.keep(request)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_a_request_that_continues_nothing_is_looked_up_once_whatever_is_kept_then(
    waiting: Waiting,
) -> None:
    waiting.ended(random_tokens(100, seed=1), random_tokens(20, seed=2))
    request = waiting.request(random_tokens(300, seed=3))
    waiting.chains.before_lookup(request)
    for other in range(5):
        waiting.ended(random_tokens(100, seed=40 + other), random_tokens(20, seed=5))
        waiting.port.looked = 0
        waiting.chains.before_lookup(request)
        assert not waiting.port.looked


def test_a_request_that_was_not_asked_for_long_is_looked_up_anew(waiting: Waiting) -> None:
    prompt, answer = random_tokens(100, seed=1), random_tokens(40, seed=2)
    waiting.ended(random_tokens(50, seed=3), answer)
    request = waiting.request(joined(prompt, answer, answer))
    waiting.chains.before_lookup(request)
    waiting.ended(prompt, answer)
    for other in range(2 * _LATEST):
        waiting.ended(random_tokens(20, seed=100 + other), answer)
    waiting.chains.before_lookup(request)
    assert request.continuation is not None


@pytest.mark.parametrize("prompt_tokens", [10, 16, 100, 160])
def test_a_chain_that_is_kept_while_its_follower_waits_is_found(
    waiting: Waiting, prompt_tokens: int
) -> None:
    prompt, answer = random_tokens(prompt_tokens, seed=6), random_tokens(40, seed=7)
    for other in range(3):
        waiting.ended(random_tokens(50 + 40 * other, seed=20 + other), answer)
    request = waiting.request(joined(prompt, answer, random_tokens(30, seed=8)))
    waiting.chains.before_lookup(request)
    assert request.continuation is None
    waiting.ended(prompt, answer)
    waiting.chains.before_lookup(request)
    assert request.continuation is not None
    assert request.handle.taken
    waiting.chains.before_lookup(request)
    assert request.continuation is not None, "also when asked again"


def test_chains_that_are_gone_are_not_looked_for(waiting: Waiting) -> None:
    prompt, answer = random_tokens(100, seed=9), random_tokens(40, seed=10)
    waiting.ended(prompt, answer)
    waiting.ended(prompt, answer)  # replaces its twin
    assert waiting.chains._lengths == {6: 1}
    waiting.chains.clear()
    assert not waiting.chains._lengths
    request = waiting.request(joined(prompt, answer, answer))
    waiting.chains.before_lookup(request)
    assert request.continuation is None
