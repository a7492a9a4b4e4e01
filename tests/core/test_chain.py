"""The rule of chains: who continues what, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.chain import Follower, Link, common_prefix, continued_tokens, furthest

PROMPT = np.arange(100, 150, dtype=np.int32)
ANSWER = np.arange(10, dtype=np.int32)
NEXT = np.arange(200, 220, dtype=np.int32)
LINK = Link(
    share_key=b"key",
    tokens=np.concatenate((PROMPT, ANSWER)),
    prompt_tokens=50,
    computed_tokens=59,
    exact_tokens=16,
    turns=3,
)


def asked(*parts: np.ndarray) -> Follower:
    return Follower(share_key=b"key", tokens=np.concatenate(parts))


def held(link: Link, follower: Follower, *, block: int = 1) -> int:
    return continued_tokens(link, follower, block_size=block)


@dataclass(frozen=True)
class Kept:
    link: Link


def test_a_continuation_takes_whole_blocks_of_what_was_computed() -> None:
    following = asked(PROMPT, ANSWER, NEXT)
    assert held(LINK, following) == 59  # the last token of the answer has no K/V
    assert held(LINK, following, block=16) == 48
    assert held(LINK, asked(PROMPT, ANSWER)) == 59
    assert held(LINK, asked(PROMPT, ANSWER[:1])) == 50  # one token stays, for its logits


@pytest.mark.parametrize(
    "follower",
    [
        asked(PROMPT),
        asked(PROMPT, NEXT),
        asked(PROMPT[:30]),
        asked(PROMPT[:30], NEXT, PROMPT[31:], ANSWER, NEXT),
        asked(PROMPT, ANSWER[1:], NEXT),
        replace(asked(PROMPT, ANSWER, NEXT), share_key=b"other"),
        replace(asked(PROMPT, ANSWER, NEXT), policy="none"),
    ],
    ids=["repeat", "no answer", "prefix", "edit", "stripped thinking", "namespace", "policy"],
)
def test_others_continue_nothing(follower: Follower) -> None:
    assert held(LINK, follower) == 0


def test_a_trimmed_or_edited_answer_is_continued_as_far_as_it_agrees() -> None:
    assert held(LINK, asked(PROMPT, ANSWER[:4], NEXT)) == 54


def test_a_chain_that_is_as_long_as_was_measured_is_not_continued() -> None:
    following = asked(PROMPT, ANSWER, NEXT)
    earlier = replace(LINK, tokens=LINK.tokens[:52], computed_tokens=51, turns=2)
    kept = [Kept(LINK), Kept(earlier)]
    assert furthest(kept, following, block_size=1, max_turns=4) == (kept[0], 59)
    # An earlier part of it does not stand in for it.
    assert furthest(kept, following, block_size=1, max_turns=3) is None
    assert furthest([], following, block_size=1, max_turns=4) is None


@given(
    first=st.lists(st.integers(0, 2), max_size=12),
    second=st.lists(st.integers(0, 2), max_size=12),
)
def test_the_common_prefix_is_as_long_as_both_agree(first: list[int], second: list[int]) -> None:
    size = common_prefix(np.array(first, dtype=np.int32), np.array(second, dtype=np.int32))
    assert first[:size] == second[:size]
    assert size == min(len(first), len(second)) or first[size] != second[size]
