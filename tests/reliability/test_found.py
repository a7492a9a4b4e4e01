"""What faults have found, so that it stays found."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from sembench.errors import ManifestError
from sembench.manifests.files import count_items, read_manifest
from semblend.core.errors import StorageError
from semblend.core.faults import InjectedError, planted
from semblend.discovery.donor_store import DonorStore
from semblend.kv.tiers import DiskTier, segment_file
from tests.kv.segments import key_of, same_kv, segment_of

NAMESPACE = b"0123456789abcdef"


def tokens(seed: int, count: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 60_000, count).astype(np.int32)


def test_donors_that_made_room_for_nobody_are_told_all_the_same() -> None:
    """K/V of a donor the index evicted is freed, though the new donor failed in the end."""
    store = DonorStore(2**16)
    gone: list[str] = []
    store.add_eviction_listener(gone.append)
    number = 0
    while not gone:
        store.register(f"d{number}", tokens(number), NAMESPACE)
        number += 1
    gone.clear()
    with planted("index_write"), pytest.raises(InjectedError):
        store.register("last", tokens(number), NAMESPACE)
    assert gone
    assert all(donor_id not in store for donor_id in gone)


def test_an_index_that_failed_half_way_names_nobody_it_does_not_hold() -> None:
    store = DonorStore(2**18)
    shared, own = tokens(1), tokens(2)
    store.register("held", shared, NAMESPACE)
    before = (store.used_bytes, store.stored_tokens)
    for _ in range(3):
        with planted("index_write"), pytest.raises(InjectedError):
            store.register("half", np.concatenate((own, shared)), NAMESPACE)
    assert (store.used_bytes, store.stored_tokens) == before
    assert store.lookup(own, NAMESPACE).runs == ()
    assert {run.donor_id for run in store.lookup(shared, NAMESPACE).runs} == {"held"}
    # Numbers of chunks are neither lost nor given twice.
    store.register("whole", np.concatenate((own, shared)), NAMESPACE)
    assert np.array_equal(store.donor_tokens("whole"), np.concatenate((own, shared)))
    assert np.array_equal(store.donor_tokens("held"), shared)
    assert store.evict("held")
    assert store.evict("whole")
    assert (len(store), store.stored_tokens) == (0, 0)


def test_a_segment_that_is_renamed_and_not_synced_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would count its bytes, and the next start would show it."""
    tier = DiskTier(tmp_path, capacity_bytes=1 << 20)

    def broken(directory: Path) -> None:
        raise OSError(5, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(segment_file, "sync_directory", broken)
        with pytest.raises(StorageError):
            tier.put(segment_of(1))
    assert [name for name in os.listdir(tmp_path) if name != "semblend.lock"] == []
    assert (tier.used_bytes, tier.stats().errors) == (0, 1)
    assert tier.put(segment_of(1))
    tier.close()


def test_one_unreadable_file_does_not_keep_a_tier_from_opening(tmp_path: Path) -> None:
    with_two = DiskTier(tmp_path, capacity_bytes=1 << 20)
    with_two.put(segment_of(1))
    with_two.put(segment_of(2))
    with_two.close()
    with planted("disk_read:1:1"):
        again = DiskTier(tmp_path, capacity_bytes=1 << 20)
    assert len(again) == 1
    assert again.stats().errors == 1
    (key,) = again.keys()
    number = 1 if key == key_of(1) else 2
    assert same_kv(again.load(key), segment_of(number))
    again.close()


def test_a_corrupt_gzip_stream_is_a_manifest_error(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl.gz"
    data = bytearray(gzip.compress(b"{}\n" * 500))
    data[12] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(ManifestError, match="cannot be read"):
        list(read_manifest(path))
    with pytest.raises(ManifestError, match="cannot be read"):
        count_items(path)
