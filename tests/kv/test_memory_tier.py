"""Segments in memory: owned bytes, checked loads, leases that outlive removal."""

from __future__ import annotations

import psutil
import pytest
import torch

from semblend.core.errors import CapacityError, CorruptSegmentError, DonorError, StorageError
from semblend.kv.segments import Segment
from semblend.kv.tiers import MemoryTier
from tests.kv.segments import SEGMENT_BYTES, key_of, same_kv, segment_of


def host(segments: float = 2) -> MemoryTier:
    return MemoryTier.on_host(capacity_bytes=int(segments * SEGMENT_BYTES), pinned=False)


def device(segments: float = 2) -> MemoryTier:
    return MemoryTier.on_device(capacity_bytes=int(segments * SEGMENT_BYTES), device="cpu")


def test_tainted_kv_is_refused() -> None:
    for tier in (host(), device()):
        with pytest.raises(DonorError, match="tainted"):
            tier.put(segment_of(1, tainted=True))
        assert len(tier) == 0


def test_a_flipped_bit_on_the_host_is_a_miss_and_is_counted() -> None:
    tier = host()
    segment = segment_of(1)
    tier.put(segment)
    segment.kv.view(torch.int16)[1, 1, 2, 0, 3] ^= 1
    assert tier.acquire(segment.key) is None
    assert segment.key not in tier
    stats = tier.stats()
    assert (stats.corrupt, stats.misses, stats.used_bytes) == (1, 1, 0)


def test_a_lease_reads_after_removal_and_its_bytes_stay_counted_until_it_ends() -> None:
    tier = device(2)
    tier.put(segment_of(1))
    lease = tier.acquire(key_of(1))
    assert lease is not None
    assert tier.remove(key_of(1))
    assert tier.acquire(key_of(1)) is None
    assert tier.used_bytes == SEGMENT_BYTES
    assert same_kv(lease.segment, segment_of(1))
    lease.release()
    lease.release()
    assert tier.used_bytes == 0
    with pytest.raises(StorageError, match="released"):
        _ = lease.segment


def test_a_leased_segment_is_never_evicted() -> None:
    tier = device(2)
    tier.put(segment_of(1))
    tier.put(segment_of(2))
    with tier.acquire(key_of(1)) as first, tier.acquire(key_of(2)) as second:
        with pytest.raises(CapacityError, match="nothing more may be evicted"):
            tier.put(segment_of(3))
        assert same_kv(first.segment, segment_of(1))
        assert same_kv(second.segment, segment_of(2))
    assert tier.put(segment_of(3))
    assert tier.keys() == (key_of(2), key_of(3))
    assert tier.stats().evictions == 1


def test_generations_tell_a_segment_that_came_back_from_the_one_that_left() -> None:
    tier = device()
    tier.put(segment_of(1))
    with tier.acquire(key_of(1)) as before:
        tier.remove(key_of(1))
        tier.put(segment_of(1))
        with tier.acquire(key_of(1)) as after:
            assert before.generation != after.generation


def test_a_view_is_copied_so_that_what_stands_behind_it_is_not_kept_alive() -> None:
    tier = device()
    whole = torch.randn(4, 2, 4, 1, 4).to(torch.bfloat16)
    tier.put(segment_of(1, kv=whole[:2]))
    with tier.acquire(key_of(1)) as lease:
        assert lease.segment.kv.untyped_storage().nbytes() == SEGMENT_BYTES
        assert torch.equal(lease.segment.kv, whole[:2])


def test_a_segment_that_changed_on_its_way_is_not_stored() -> None:
    tier = host()
    with pytest.raises(CorruptSegmentError, match="changed on its way"):
        tier.put(segment_of(1, checksum=12345))
    assert (len(tier), tier.used_bytes) == (0, 0)


def test_victims_are_demoted_while_they_are_still_held() -> None:
    tier = device(1)
    tier.put(segment_of(1))
    seen = []
    tier.put(segment_of(2), demote=lambda segment: seen.append((segment, segment.key in tier)))
    assert same_kv(seen[0][0], segment_of(1))
    assert seen[0][1]


def test_resident_memory_stays_within_the_cap_however_much_is_put() -> None:
    """Evicted K/V goes back to the system: eight times the cap passes through."""
    cap, tokens, mib = 64 << 20, 2048, 1 << 20
    process = psutil.Process()
    tier = MemoryTier.on_host(capacity_bytes=cap, pinned=False)
    before = process.memory_info().rss
    for number in range(128):
        kv = torch.full((1, 2, tokens, 4, 64), float(number))  # 4 MiB
        tier.put(Segment(key=key_of(number, tokens), kv=kv))
        del kv
        assert tier.used_bytes <= cap
        assert process.memory_info().rss - before <= cap + 48 * mib
    assert tier.used_bytes == cap
