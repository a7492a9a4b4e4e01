"""Memory that is used again: never by two at once, never beyond the cap, touched beforehand."""

from __future__ import annotations

import ctypes
import gc
import mmap
import resource
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import CapacityError, DonorError
from semblend.kv.segments import Segment
from semblend.kv.tiers import DiskTier, MemoryTier, TierStack
from semblend.kv.tiers.host_blocks import SLICE_BYTES, HostBlocks
from tests.kv.segments import TOKEN_BYTES, key_of, same_kv, segment_of

PAGE = mmap.PAGESIZE
TOKENS = 4 * PAGE // TOKEN_BYTES
"""A segment of four pages."""
BYTES = TOKENS * TOKEN_BYTES
LARGE = 4 * SLICE_BYTES


def faults_of(work: Callable[[], object]) -> int:
    """Pages this thread touched for the first time in `work`."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def resident_pages(address: int, nbytes: int) -> int:
    """Pages from a page's `address` on that are in memory."""
    pages = -(-nbytes // PAGE)
    states = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(pages * PAGE), states):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(state & 1 for state in states)


def recycling(segments: float) -> MemoryTier:
    return MemoryTier.on_host(
        capacity_bytes=int(segments * BYTES), pinned=False, segment_bytes=BYTES
    )


def copied_by(tier: MemoryTier, number: int, tokens: int = TOKENS) -> Callable[[], Segment]:
    """Loads segment `number` into the tier's own memory, as capture does."""

    def load() -> Segment:
        segment = segment_of(number, tokens)
        kv = tier.empty(segment.kv.shape, segment.kv.dtype)
        return Segment(key=segment.key, kv=kv.copy_(segment.kv))

    return load


def store(tier: MemoryTier, number: int, tokens: int = TOKENS) -> bool:
    key = key_of(number, tokens)
    return tier.put_from(key, tokens * TOKEN_BYTES, copied_by(tier, number, tokens))


def test_memory_comes_back_with_its_last_reader_and_is_used_again() -> None:
    blocks = HostBlocks(BYTES)
    tensor = blocks.empty((2, BYTES // 8), torch.float32)
    address, part = tensor.data_ptr(), tensor[1, 3:]
    del tensor
    assert blocks.spare_bytes == 0, "somebody still reads it"
    del part
    assert blocks.spare_bytes == BYTES
    assert blocks.empty((BYTES,), torch.uint8).data_ptr() == address


def test_memory_touched_ahead_is_not_touched_again() -> None:
    blocks = HostBlocks(LARGE)
    fresh = blocks.empty((LARGE,), torch.uint8)
    assert faults_of(lambda: fresh.fill_(1)) >= LARGE // PAGE // 2
    assert blocks.spare_bytes == 0
    while blocks.grow(2 * LARGE):
        pass
    assert blocks.spare_bytes == 2 * LARGE
    for _ in range(2):
        ready = blocks.empty((LARGE,), torch.uint8)
        assert faults_of(lambda ready=ready: ready.fill_(1)) < LARGE // PAGE // 16
    assert not blocks.grow(blocks.spare_bytes + 1)


def test_a_short_segment_does_not_keep_the_memory_of_a_long_one() -> None:
    blocks = HostBlocks(BYTES)
    blocks.empty((BYTES,), torch.uint8).fill_(1)
    short = blocks.empty((PAGE + 1,), torch.uint8).fill_(2)
    assert resident_pages(short.data_ptr(), BYTES) == 2
    assert blocks.spare_bytes == 0
    del short
    assert blocks.spare_bytes == 2 * PAGE


def test_spare_memory_is_given_back_to_the_system() -> None:
    blocks = HostBlocks(BYTES)
    held = [blocks.empty((BYTES,), torch.uint8).fill_(1) for _ in range(3)]
    del held
    blocks.trim(2 * BYTES)
    assert blocks.spare_bytes == 2 * BYTES
    blocks.trim(BYTES - 1)
    assert blocks.spare_bytes == 0


def test_what_is_larger_than_a_block_is_allocated_as_usual() -> None:
    blocks = HostBlocks(BYTES)
    assert blocks.empty((BYTES + 1,), torch.uint8).nbytes == BYTES + 1
    assert blocks.spare_bytes == 0
    with pytest.raises(CapacityError, match="block_bytes"):
        HostBlocks(0)


def test_two_never_have_the_same_memory() -> None:
    blocks = HostBlocks(BYTES)
    spoiled: list[int] = []

    def work(number: int) -> None:
        for turn in range(150):
            tensors = [blocks.empty((BYTES,), torch.uint8).fill_(number) for _ in range(3)]
            blocks.grow(4 * BYTES)
            blocks.trim(6 * BYTES)
            spoiled.extend(turn for tensor in tensors if not bool((tensor == number).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spoiled == []


def test_a_full_tier_copies_into_the_memory_of_what_made_room() -> None:
    tier = recycling(2)
    store(tier, 1)
    store(tier, 2)
    with tier.acquire(key_of(1, TOKENS)) as lease:
        address = lease.segment.kv.data_ptr()
    with tier.acquire(key_of(2, TOKENS)):
        pass
    store(tier, 3)
    with tier.acquire(key_of(3, TOKENS)) as lease:
        assert lease.segment.kv.data_ptr() == address
        assert same_kv(lease.segment, segment_of(3, TOKENS))


def test_whoever_still_reads_after_its_lease_reads_what_was_there() -> None:
    tier = recycling(1)
    store(tier, 1)
    lease = tier.acquire(key_of(1, TOKENS))
    assert lease is not None
    late = lease.segment
    lease.release()
    for number in range(2, 6):
        store(tier, number)
    assert same_kv(late, segment_of(1, TOKENS))


def test_memory_of_a_load_that_fails_is_spare_again_and_nothing_is_visible() -> None:
    tier = recycling(2)

    def load() -> Segment:
        tier.empty((BYTES,), torch.uint8)
        raise OSError("gone")

    stack = TierStack((tier,))
    assert stack.put_from(key_of(1, TOKENS), BYTES, load) is None
    gc.collect()
    assert (tier.used_bytes, len(tier), key_of(1, TOKENS) in stack) == (0, 0, False)
    assert tier.spare_bytes == BYTES


def test_tainted_kv_is_refused_however_it_is_loaded() -> None:
    tier = recycling(2)
    with pytest.raises(DonorError, match="tainted"):
        tier.put_from(key_of(1, TOKENS), BYTES, lambda: segment_of(1, TOKENS, tainted=True))
    assert len(tier) == 0


def test_memory_is_prepared_for_what_may_come_and_never_for_more_than_half_the_room() -> None:
    tier = recycling(8)
    while tier.prepare(100 * BYTES):
        pass
    assert tier.spare_bytes == 4 * BYTES
    for number in range(8):
        store(tier, number)
        assert tier.used_bytes + tier.spare_bytes <= tier.capacity_bytes
    assert tier.spare_bytes == 0
    for number in range(8):
        tier.remove(key_of(number, TOKENS))
    assert tier.spare_bytes == 8 * BYTES
    while tier.prepare(2 * BYTES):
        pass
    assert tier.spare_bytes == 2 * BYTES, "no more is kept than what may come"


def test_a_tier_that_was_not_told_the_size_of_segments_keeps_no_spare_memory() -> None:
    tier = MemoryTier.on_host(capacity_bytes=8 * BYTES, pinned=False)
    store(tier, 1)
    tier.remove(key_of(1, TOKENS))
    assert not tier.prepare(8 * BYTES)
    assert tier.spare_bytes == 0


def test_segments_from_disk_are_read_into_spare_memory(tmp_path) -> None:
    host = recycling(2)
    with TierStack((host,), DiskTier(tmp_path, capacity_bytes=8 * BYTES)) as stack:
        for number in range(3):
            stack.put_from(key_of(number, TOKENS), BYTES, copied_by(host, number))
        with host.acquire(key_of(2, TOKENS)) as lease:
            address = lease.segment.kv.data_ptr()
        with host.acquire(key_of(1, TOKENS)):
            pass  # so that the other goes when room is needed
        with stack.acquire(key_of(0, TOKENS)) as lease:
            assert lease.segment.kv.data_ptr() == address
            assert same_kv(lease.segment, segment_of(0, TOKENS))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("store", "put", "remove", "lease", "release", "prepare")),
            st.integers(0, 7),
            st.integers(1, 4),
        ),
        max_size=40,
    )
)
def test_segments_and_spare_memory_together_stay_within_the_cap(
    steps: list[tuple[str, int, int]],
) -> None:
    tier = recycling(3)
    leases = []
    for what, number, quarters in steps:
        tokens = number % 4 * TOKENS // 4 + TOKENS // 4
        try:
            if what == "store":
                store(tier, number, tokens)
            elif what == "put":
                tier.put(segment_of(number, tokens))
        except CapacityError:
            assert leases
        if what == "remove":
            tier.remove(key_of(number, tokens))
        elif what == "lease" and (lease := tier.acquire(key_of(number, tokens))) is not None:
            assert same_kv(lease.segment, segment_of(number, tokens))
            leases.append(lease)
        elif what == "release" and leases:
            leases.pop().release()
        elif what == "prepare":
            tier.prepare(quarters * BYTES)
        assert tier.used_bytes + tier.spare_bytes <= tier.capacity_bytes
