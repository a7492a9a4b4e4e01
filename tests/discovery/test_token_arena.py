"""The arena gives back what was put in, and its pages never leak."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import CapacityError
from semblend.discovery.token_arena import PAGE_TOKENS, TokenArena, pages_for


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30), data=st.data())
def test_put_then_read_is_identity_and_pages_come_back(sizes, data):
    arena = TokenArena(pages=2_000)
    rng = np.random.default_rng(0)
    held = {}
    for number, size in enumerate(sizes):
        text = rng.integers(0, 1000, size, dtype=np.int32)
        held[number] = (arena.put(text, number), text)
        if data.draw(st.booleans()):
            run, _ = held.pop(data.draw(st.sampled_from(sorted(held))))
            arena.give_back(run)
    for run, text in held.values():
        assert (arena.read(run) == text).all()
    assert arena.free_pages == 2_000 - sum(pages_for(text.size) for _, text in held.values())


@given(size=st.integers(1, 300), offset=st.integers(0, 299))
def test_places_lead_back_to_chunk_and_offset_and_their_surroundings(size, offset):
    offset %= size
    arena = TokenArena(pages=50)
    for filler in range(3):  # recycled pages come in another order
        arena.give_back(arena.put(np.full(200, filler, dtype=np.int32), filler))
    text = np.arange(size, dtype=np.int32) + 1_000
    run = arena.put(text, 5)
    places = arena.places(run, np.array([offset]))
    chunk, where = arena.owners(places)
    assert (chunk[0], where[0]) == (5, offset)
    before, after = np.array([16, 0, 3]), np.array([48, 1, 64])
    around = arena.around(places.repeat(3), before, after)
    steps = [range(-b, a) for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    assert around.size == sum(map(len, steps))
    for token, step in zip(around.tolist(), itertools.chain(*steps), strict=True):
        if 0 <= offset + step < size:
            assert token == text[offset + step]


def test_a_full_arena_refuses_and_takes_nothing():
    arena = TokenArena(pages=2)
    arena.put(np.zeros(PAGE_TOKENS, dtype=np.int32), 0)
    with pytest.raises(CapacityError):
        arena.put(np.zeros(PAGE_TOKENS + 1, dtype=np.int32), 1)
    assert arena.free_pages == 1
