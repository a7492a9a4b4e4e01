"""K/V that comes from elsewhere is the same bytes or nothing; quotas, leases and times hold."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from semblend.core.errors import (
    CapacityError,
    CorruptSegmentError,
    DonorError,
    SerialisationError,
    SettingsError,
    StorageError,
)
from semblend.fleet.transport.folder import FolderStore
from semblend.fleet.transport.payload import (
    decode_manifest,
    decode_segment,
    encode_manifest,
    encode_segment,
    manifest_name,
    segment_name,
)
from semblend.fleet.transport.shelf import SharedShelf
from semblend.fleet.transport.store import open_store
from semblend.kv.segments import Segment, SegmentKey
from tests.fleet.machines import inside
from tests.fleet.support import KEYS, NAMESPACE, OTHER_KEYS, need, need_own_network, prompt

ROOT = Path(__file__).resolve().parents[2]
NAME = "ab" * 32


def segment(seed, tokens=64, tainted=False):
    key = SegmentKey.of(NAMESPACE.key(), prompt(seed, tokens), 0, tokens)
    generator = torch.Generator().manual_seed(seed)
    return Segment(
        key=key, kv=torch.randn(2, 2, tokens, 2, 4, generator=generator), tainted=tainted
    )


def joined(parts):
    return b"".join(bytes(part) for part in parts)


def test_a_segment_comes_back_bit_for_bit():
    made = segment(1)
    back = decode_segment(joined(encode_segment(made)), made.key)
    assert torch.equal(back.kv, made.kv)
    assert back.key == made.key


def test_any_damage_is_a_corrupt_segment():
    made = segment(1)
    data = bytearray(joined(encode_segment(made)))
    for where in (0, 20, 90, 127, 128, len(data) // 2, len(data) - 1):
        data[where] ^= 1
        with pytest.raises(CorruptSegmentError):
            decode_segment(data, made.key)
        data[where] ^= 1
    for cut in (b"", data[:100], data[:-1], data + b"x"):
        with pytest.raises(CorruptSegmentError):
            decode_segment(cut, made.key)
    with pytest.raises(CorruptSegmentError, match="another segment"):
        decode_segment(data, segment(2).key)


def test_tainted_kv_never_leaves():
    with pytest.raises(DonorError, match="tainted"):
        encode_segment(segment(1, tainted=True))


def test_manifests_come_back_and_damaged_ones_do_not():
    tokens = prompt(3, 777)
    data = bytearray(joined(encode_manifest(tokens)))
    assert np.array_equal(decode_manifest(data), tokens)
    for where in (0, 9, 16, len(data) - 1):
        data[where] ^= 1
        with pytest.raises(SerialisationError):
            decode_manifest(data)
        data[where] ^= 1
    with pytest.raises(SerialisationError):
        decode_manifest(data[:-3])


def test_names_in_the_store_cannot_be_computed_from_content():
    key = segment(1).key
    assert key.name not in segment_name(key, KEYS)
    assert segment_name(key, KEYS) != segment_name(key, OTHER_KEYS)
    assert manifest_name(5, KEYS) != manifest_name(5, OTHER_KEYS)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def shelf(tmp_path, clock, **options):
    options.setdefault("max_bytes", 10**6)
    options.setdefault("ttl_s", 100.0)
    return SharedShelf(FolderStore(tmp_path), lease_s=10.0, clock=clock, **options)


def share(held, donor_id, *seeds):
    parts = [(segment_name(s.key, KEYS), s) for s in map(segment, seeds)]
    held.put(
        donor_id,
        manifest=manifest_name(hash(donor_id) & 0xFFFF, KEYS),
        tokens=prompt(1, 64),
        segments=parts,
    )


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_a_withdrawn_donor_leaves_in_two_steps_and_a_lease_apart(tmp_path):
    clock, gone = Clock(), []
    held = shelf(tmp_path, clock, gone=gone.append)
    share(held, "d", 1, 2)
    assert len(files(tmp_path)) == 3
    assert held.withdraw("d")
    assert gone == ["d"]
    assert len(files(tmp_path)) == 2, "the manifest is gone, its readers can finish"
    held.expire()
    assert len(files(tmp_path)) == 2
    clock.now = 11.0
    held.expire()
    assert not files(tmp_path)
    assert held.used_bytes == 0


def test_shared_segments_are_stored_once_and_go_with_the_last_donor(tmp_path):
    clock = Clock()
    held = shelf(tmp_path, clock)
    share(held, "one", 1, 2)
    used = held.used_bytes
    share(held, "two", 2, 3)
    assert held.used_bytes == pytest.approx(used * 1.5)
    held.withdraw("one")
    clock.now = 11.0
    held.expire()
    assert segment_name(segment(2).key, KEYS) in files(tmp_path)
    assert segment_name(segment(1).key, KEYS) not in files(tmp_path)


def test_donors_expire(tmp_path):
    clock, gone = Clock(), []
    held = shelf(tmp_path, clock, ttl_s=50.0, gone=gone.append)
    share(held, "d", 1)
    clock.now = 51.0
    held.expire()
    assert gone == ["d"]
    assert held.get("d") is None


def test_the_quota_is_never_exceeded_and_the_oldest_leave(tmp_path):
    clock, gone = Clock(), []
    size = sum(len(bytes(part)) for part in encode_segment(segment(0)))
    held = shelf(tmp_path, clock, max_bytes=int(size * 2.5), gone=gone.append)
    for number in range(6):
        share(held, f"d{number}", number)
        on_disk = sum(p.stat().st_size for p in tmp_path.iterdir() if p.stat().st_size == size)
        assert on_disk == held.used_bytes <= held.max_bytes
    assert gone == ["d0", "d1", "d2", "d3"]
    with pytest.raises(CapacityError):
        share(held, "large", 10, 11, 12)
    assert held.used_bytes <= held.max_bytes
    small = shelf(tmp_path / "x", clock, max_bytes=10)
    with pytest.raises(CapacityError):
        share(small, "d", 1)
    assert small.used_bytes == 0


def test_a_failing_store_leaves_nothing_behind(tmp_path):
    clock = Clock()
    held = shelf(tmp_path, clock)
    real = held.store.put

    def broken(name, parts):
        if name == segment_name(segment(2).key, KEYS):
            raise StorageError("full")
        real(name, parts)

    held.store.put = broken
    with pytest.raises(StorageError):
        share(held, "d", 1, 2)
    assert not files(tmp_path)
    assert held.used_bytes == 0
    held.store.put = real
    share(held, "d", 1, 2)
    assert len(files(tmp_path)) == 3


def test_a_folder_takes_only_our_names(tmp_path):
    store = FolderStore(tmp_path)
    with pytest.raises(StorageError, match="hex"):
        store.put("../escape", [b"x"])
    store.put(NAME, [b"one", b"two"])
    assert bytes(store.get(NAME)) == b"onetwo"
    target = tmp_path / "elsewhere"
    target.write_bytes(b"secret")
    link = tmp_path / ("cd" * 32)
    os.symlink(target, link)
    with pytest.raises(StorageError):
        store.get("cd" * 32)


@pytest.mark.parametrize("address", ["", "folder:", "s3:bucket", "mooncake"])
def test_an_unknown_store_is_refused_by_name(address):
    with pytest.raises(SettingsError, match="SEMBLEND_TRANSPORT"):
        open_store(address)


def between_processes(address, tmp_path):
    """One process shares, another reads; the first withdraws, the second finds nothing."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    child = [sys.executable, "-m", "tests.fleet.store_child"]
    with subprocess.Popen(
        [*child, "put", address, NAME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
        cwd=ROOT,
    ) as owner:
        assert any(line == "ready\n" for line in owner.stdout), "the object was not shared"
        got = tmp_path / "got"
        reader = [*child, "get", address, NAME, str(got)]
        result = subprocess.run(reader, env=env, cwd=ROOT, timeout=120, capture_output=True)
        assert got.read_bytes() == b"head" + bytes(range(256)) * 4096, result.stderr[-2000:]
        owner.communicate("stop\n", timeout=60)


def test_a_folder_serves_other_processes(tmp_path):
    between_processes(f"folder:{tmp_path / 'shared'}", tmp_path)


def test_nixl_reads_another_process_memory(tmp_path):
    found = any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12"))
    need(found, "nixl-cu12")
    between_processes(f"nixl:{tmp_path / 'descriptors'}", tmp_path)


def test_mooncake_serves_other_machines(tmp_path):
    """The master listens on all addresses, so it runs in a network of its own, as all do."""
    need(importlib.util.find_spec("mooncake"), "mooncake-transfer-engine-non-cuda")
    need_own_network()
    master = Path(sys.executable).with_name("mooncake_master")
    inside("tests.fleet.mooncake_inside", str(tmp_path), str(master))
    assert (tmp_path / "got").read_bytes() == b"head" + bytes(range(256)) * 4096
