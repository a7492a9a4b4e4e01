"""One arena of pinned memory: within its cap, used again, never under somebody's feet."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import CapacityError
from semblend.kv.pinned_arena import ArenaFullError, PinnedArena
from semblend.kv.segments import Segment
from semblend.kv.tiers import MemoryTier, TierStack
from tests.kv.segments import key_of, same_kv, segment_of


class Pins:
    """Takes note of what is pinned."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def pin(self, address: int, nbytes: int) -> None:
        self.held[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.held[address]


def make(capacity: int, segment: int, pins: Pins, slab: int = 1 << 20) -> PinnedArena:
    return PinnedArena(
        capacity, segment_bytes=segment, slab_bytes=slab, pin=pins.pin, unpin=pins.unpin
    )


@settings(deadline=None)
@given(
    orders=st.lists(st.tuples(st.booleans(), st.integers(1, 9000)), max_size=60),
    slab=st.sampled_from([4096, 1 << 20]),
)
def test_tensors_never_overlap_and_the_cap_is_held(orders, slab) -> None:
    pins, held = Pins(), {}
    arena = make(40_000, 2048, pins, slab)
    for number, (takes, nbytes) in enumerate(orders):
        if not takes:
            held.pop(next(iter(held), None), None)
            continue
        try:
            held[number] = arena.empty((nbytes,), torch.uint8).fill_(number)
        except ArenaFullError:
            assert sum(-(-one.numel() // 512) * 512 for one in held.values()) + nbytes > 15_000
            continue
        assert held[number].untyped_storage().nbytes() == nbytes
        assert all(bool((tensor == at).all()) for at, tensor in held.items())
        assert arena.held_bytes == sum(pins.held.values()) <= 40_000
    held.clear()
    assert arena.free_bytes == arena.held_bytes
    arena.close()
    assert not pins.held


def test_memory_comes_back_with_the_last_tensor_over_it() -> None:
    arena = make(4096, 2048, Pins())
    first = arena.empty((2048,), torch.uint8)
    arena.empty((2048,), torch.uint8).fill_(1)
    view = first[10:20]
    del first
    second = arena.empty((2048,), torch.uint8)
    with pytest.raises(ArenaFullError):
        arena.empty((512,), torch.uint8)
    del view
    third = arena.empty((2000,), torch.uint8)
    assert third.data_ptr() != second.data_ptr()


def test_what_cannot_be_pinned_is_no_room() -> None:
    def refuse(address: int, nbytes: int) -> None:
        raise CapacityError("no")

    arena = PinnedArena(4096, segment_bytes=512, pin=refuse, unpin=lambda _: None)
    with pytest.raises(CapacityError):
        arena.empty((512,), torch.uint8)
    assert arena.held_bytes == 0
    with pytest.raises(CapacityError):
        PinnedArena(0, segment_bytes=1)


def test_slabs_are_pinned_ahead_and_no_further_than_the_cap() -> None:
    pins = Pins()
    arena = make(8192, 2048, pins)
    assert arena.prepare(2048)
    assert arena.held_bytes == 8192  # a slab is as large as the cap allows
    assert not arena.prepare(2048)
    kept = arena.empty((8192,), torch.uint8)
    assert not arena.prepare(2048)
    assert kept.numel() == 8192


TOKENS = 16
SEGMENT_BYTES = segment_of(0, TOKENS).nbytes


def tier_with(arena: PinnedArena) -> MemoryTier:
    return MemoryTier.on_host(capacity_bytes=arena.capacity_bytes, pinned=False, arena=arena)


def put(tier: MemoryTier, number: int, tokens: int = TOKENS) -> None:
    segment = segment_of(number, tokens)

    def load() -> Segment:
        kv = tier.empty(segment.kv.shape, segment.kv.dtype)
        return Segment(key=segment.key, kv=kv.copy_(segment.kv))

    tier.put_from(segment.key, segment.nbytes, load)


def test_a_tier_keeps_its_segments_in_the_arena_and_uses_it_again() -> None:
    arena = make(3 * SEGMENT_BYTES, SEGMENT_BYTES, Pins())
    tier = tier_with(arena)
    for number in range(7):
        put(tier, number)
        assert arena.held_bytes <= 3 * SEGMENT_BYTES
    for number in (4, 5, 6):
        with tier.acquire(key_of(number, TOKENS)) as lease:
            assert same_kv(lease.segment, segment_of(number, TOKENS))
    assert tier.acquire(key_of(3, TOKENS)) is None


def test_room_in_pieces_is_made_whole_by_letting_more_go() -> None:
    """Bytes enough are free, but not side by side: the least recently used goes, too."""
    tier = tier_with(make(4 * SEGMENT_BYTES, SEGMENT_BYTES, Pins()))
    for number in range(4):
        put(tier, number)
    tier.remove(key_of(0, TOKENS))
    tier.remove(key_of(2, TOKENS))
    put(tier, 9, 2 * TOKENS)
    assert set(tier.keys()) == {key_of(3, TOKENS), key_of(9, 2 * TOKENS)}
    with tier.acquire(key_of(9, 2 * TOKENS)) as lease:
        assert same_kv(lease.segment, segment_of(9, 2 * TOKENS))


def test_leased_segments_are_never_moved_for_room() -> None:
    tier = tier_with(make(4 * SEGMENT_BYTES, SEGMENT_BYTES, Pins()))
    for number in range(4):
        put(tier, number)
    with tier.acquire(key_of(1, TOKENS)) as one, tier.acquire(key_of(3, TOKENS)) as other:
        tier.remove(key_of(0, TOKENS))
        tier.remove(key_of(2, TOKENS))
        with pytest.raises(CapacityError):
            put(tier, 9, 2 * TOKENS)
        assert same_kv(one.segment, segment_of(1, TOKENS))
        assert same_kv(other.segment, segment_of(3, TOKENS))
    assert tier.used_bytes == 2 * SEGMENT_BYTES


def test_what_cannot_fit_whatever_goes_is_known_before_anything_does() -> None:
    stack = TierStack([tier_with(make(4 * SEGMENT_BYTES, SEGMENT_BYTES, Pins()))])
    (tier,) = stack.memory
    for number in range(4):
        put(tier, number)
    assert stack.could_hold(4 * SEGMENT_BYTES)
    assert not stack.could_hold(4 * SEGMENT_BYTES + 1)
    with tier.acquire(key_of(1, TOKENS)):
        assert stack.could_hold(3 * SEGMENT_BYTES)
        assert not stack.could_hold(3 * SEGMENT_BYTES + 1)
    assert len(tier) == 4
