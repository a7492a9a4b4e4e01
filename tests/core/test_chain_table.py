"""The table of chains stays within its cap, whatever is kept, continued and dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.chain import Follower, Link
from semblend.core.chain_table import ChainTable, PromptNames

BLOCK = 4


@dataclass(eq=False)
class Kept:
    link: Link
    prompt_key: bytes
    units: tuple[int, ...]


def kept(name: int, units: tuple[int, ...]) -> Kept:
    tokens = np.array([name, name, 7, 7, *range(name, name + 8)], dtype=np.int32)
    link = Link(
        share_key=b"k",
        tokens=tokens,
        prompt_tokens=8,
        computed_tokens=11,
        exact_tokens=0,
        turns=2,
    )
    return Kept(link, bytes([name]), units)


def follower(name: int) -> Follower:
    return Follower(share_key=b"k", tokens=np.append(kept(name, ()).link.tokens, np.int32(1)))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, tuple[int, ...]]]:
    units = st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True).map(tuple)
    what = st.sampled_from(["add", "find", "drop", "exact"])
    return draw(st.lists(st.tuples(what, st.integers(10, 16), units), max_size=40))


@given(steps(), st.integers(1, 9))
def test_the_cap_holds_and_every_unit_is_accounted_for(
    steps: list[tuple[str, int, tuple[int, ...]]], cap: int
) -> None:
    gone: list[Kept] = []
    table: ChainTable[Kept] = ChainTable(
        block_size=BLOCK, max_units=cap, max_turns=10, dropped=gone.append
    )
    added = 0
    for what, name, units in steps:
        if what == "add" and table.takes(len(units)):
            table.add(kept(name, units))
            added += 1
        elif what == "find":
            found = table.find(follower(name), [bytes([name])])
            assert (found is not None) == any(one.prompt_key == bytes([name]) for one in table)
        elif what == "exact":
            table.became_exact(b"k", kept(name, ()).link.tokens)
            assert all(one.prompt_key != bytes([name]) for one in table)
        elif what == "drop":
            for one in tuple(table)[:1]:
                table.drop(one)
        assert table.units <= cap
        held = [unit for one in table for unit in one.units]
        assert table.units == len(set(held))
        assert all(table.holders(unit) == held.count(unit) for unit in range(13))
        assert len(table) + len(gone) == added, "each one leaves once"


def test_what_was_unused_longest_goes_first() -> None:
    table: ChainTable[Kept] = ChainTable(block_size=BLOCK, max_units=3, max_turns=10)
    for name in (10, 11, 12):
        table.add(kept(name, (name,)))
    assert table.find(follower(10), [bytes([10])]) is not None
    table.add(kept(13, (13,)))
    assert [one.prompt_key[0] for one in table] == [12, 10, 13]


def test_a_kept_prompt_is_named_as_its_followers_beginning_is_and_no_longer_once_dropped() -> None:
    names = PromptNames()
    one, other = kept(3, ()).link, kept(4, ()).link
    for link in (one, one, other):
        names.add(link)
    assert list(names.keys(follower(3))) == [names.key(one)]
    assert list(names.keys(follower(4))) == [names.key(other)] != [names.key(one)]
    assert not list(names.keys(Follower(share_key=b"k", tokens=one.tokens[:8]))), "nothing behind"
    foreign = Follower(share_key=b"another", tokens=follower(3).tokens)
    assert list(names.keys(foreign)) != [names.key(one)]
    names.drop(one)
    assert list(names.keys(follower(3))) == [names.key(one)]
    names.drop(one)
    names.drop(other)
    assert not list(names.keys(follower(3)))
