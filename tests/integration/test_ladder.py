"""The staged ladder's laws, with an engine that has nothing but a block-wise prefix cache."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError, RequestError
from semblend.core.plan import Hole, Plan, Span
from semblend.integration.ladder import (
    ENDS_KEY,
    PROMPT_KEY,
    LadderBook,
    LadderPlan,
    RungReply,
    climb,
    new_salt,
    rungs_of,
    split_salt,
)


@st.composite
def plans(draw):
    """Any plan: spans of two donors with gaps (or none) between them, and recompute runs."""
    position, spans = draw(st.integers(0, 40)), []
    for _ in range(draw(st.integers(0, 6))):
        length = draw(st.integers(1, 90))
        spans.append(
            Span(
                donor_id=draw(st.sampled_from("ab")),
                donor_start=draw(st.integers(0, 500)),
                target_start=position,
                length=length,
            )
        )
        position += length + draw(st.sampled_from((0, 1, 7, 40)))
    prompt_tokens = position + draw(st.integers(1, 50))
    end = spans[-1].target_end if spans else 0
    recompute = tuple(
        Hole(span.target_start, span.target_start + draw(st.integers(1, span.length)))
        for span in spans
        if draw(st.booleans())
    )
    return Plan(
        namespace="n", prompt_tokens=prompt_tokens, spans=tuple(spans), end=end, recompute=recompute
    )


class BlockEngine:
    """Computes prompts on top of whole cached blocks; asks the ladder for what follows."""

    def __init__(self, plan: Plan, block_size: int) -> None:
        self.block_size = block_size
        self.cached: dict[str, int] = {}
        self.prompt = np.arange(plan.prompt_tokens, dtype=np.int32)
        self.ladder = LadderPlan(plan=plan, tokens=self.prompt, rungs=rungs_of(plan, block_size))
        self.supplied: list[int] = []
        self.computed: list[int] = []
        self.requests = 0

    async def submit(self, tokens, salt, hints, is_prompt):
        self.requests += 1
        if PROMPT_KEY in hints:
            known = {ENDS_KEY: list(self.ladder.ends)} if self.ladder.rungs else {}
            return RungReply(reply="planned", semblend=known)
        size = len(tokens)
        start = min(self.cached.get(salt, 0), size - 1) // self.block_size * self.block_size
        prompt = np.asarray(tokens, dtype=np.int32)
        spans = self.ladder.supply(prompt, start) if salt else ()
        reach = start
        for span in spans:
            assert span.target_start == reach, "only what follows the cached prefix is supplied"
            self.supplied += range(reach, span.target_end)
            reach = span.target_end
        self.computed += range(reach, size)
        self.cached[salt] = size // self.block_size * self.block_size
        return RungReply(reply="answer", semblend={})


@given(plan=plans(), block_size=st.sampled_from((1, 4, 16, 32)))
def test_every_token_is_supplied_or_computed_once(plan, block_size):
    engine = BlockEngine(plan, block_size)
    asyncio.run(climb(engine.prompt.tolist(), engine.submit))
    assert sorted(engine.supplied + engine.computed) == list(range(plan.prompt_tokens))


@given(plan=plans(), block_size=st.sampled_from((1, 4, 16, 32)))
def test_only_planned_tokens_are_supplied_and_only_heads_are_lost(plan, block_size):
    copied = {p for span in plan.copies for p in range(span.target_start, span.target_end)}
    engine = BlockEngine(plan, block_size)
    asyncio.run(climb(engine.prompt.tolist(), engine.submit))
    supplied = set(engine.supplied)
    assert supplied <= copied
    lost = sum(min(block_size - 1, span.length) for span in plan.copies)
    assert len(copied) - len(supplied) <= lost, "at most the head of a span, up to a block"
    assert engine.ladder.supplied_tokens == len(supplied)


@given(plan=plans(), block_size=st.sampled_from((1, 4, 16, 32)))
def test_rungs_rise_on_block_boundaries_to_the_prompt(plan, block_size):
    rungs = rungs_of(plan, block_size)
    ends = [rung.end for rung in rungs]
    assert ends == sorted(set(ends))
    assert all(end % block_size == 0 for end in ends[:-1])
    assert not rungs or ends[-1] == plan.prompt_tokens
    assert all(not rung.spans or rung.spans[0].target_start == rung.start for rung in rungs)


def test_without_a_plan_the_prompt_runs_under_the_users_own_salt():
    salts = []

    async def submit(tokens, salt, hints, is_prompt):
        salts.append((len(tokens), salt, is_prompt))
        return RungReply(reply=len(tokens), semblend={})

    answer = asyncio.run(climb([1, 2, 3], submit, user_salt="mine"))
    assert answer.reply == 3
    (asked, *_), (size, salt, is_prompt) = salts
    assert asked == 1
    assert (size, salt, is_prompt) == (3, "mine", True)


def test_a_rung_of_another_prompt_is_supplied_with_nothing():
    span = Span(donor_id="a", donor_start=9, target_start=0, length=64)
    plan = Plan(namespace="n", prompt_tokens=100, spans=(span,), end=64)
    tokens = np.arange(100, dtype=np.int32)
    ladder = LadderPlan(plan=plan, tokens=tokens, rungs=rungs_of(plan, 16))
    assert ladder.supply(tokens, 0) == (span,)
    assert ladder.supply(tokens[::-1].copy(), 0) == ()


@given(user=st.one_of(st.none(), st.text(max_size=20)))
def test_a_ladders_salt_is_private_and_keeps_the_users(user):
    one, two = new_salt(user), new_salt(user)
    assert one != two
    salt, ladder_id = split_salt(one)
    assert salt == user
    assert ladder_id
    assert split_salt(user) == (user, None) or "semblend-ladder:" in (user or "")


def test_the_book_forgets_the_oldest_ladders():
    book = LadderBook(limit=2)
    plan = Plan(namespace="n", prompt_tokens=10)
    ladder = LadderPlan(plan=plan, tokens=np.arange(10, dtype=np.int32), rungs=())
    for name in "abc":
        book.open(name, ladder)
    assert len(book) == 2
    assert book.get("a") is None
    book.supplied("b", 5)
    book.supplied("a", 5)
    assert book.close("b") == 5
    assert book.close("a") == 0


def test_nonsense_is_refused():
    plan = Plan(namespace="n", prompt_tokens=10)
    with pytest.raises(PlanError, match="block_size"):
        rungs_of(plan, 0)

    async def submit(tokens, salt, hints, is_prompt):
        return RungReply(reply=None, semblend={ENDS_KEY: [99]})

    with pytest.raises(RequestError, match="at least one token"):
        asyncio.run(climb([], submit))
    with pytest.raises(RequestError, match="an end in"):
        asyncio.run(climb([1, 2, 3], submit))
