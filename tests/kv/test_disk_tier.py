"""Segments on disk: complete or not there, and never a wrong byte."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import CapacityError, CorruptSegmentError, DonorError, StorageError
from semblend.kv.segments import Segment
from semblend.kv.tiers import DiskTier, segment_file
from semblend.kv.tiers.segment_file import HEADER_BYTES, Header
from tests.kv.segments import FILE_BYTES, key_of, same_kv, segment_of

ROOT = Path(__file__).parents[2]


def disk(folder: Path, segments: int = 4) -> DiskTier:
    return DiskTier(folder, capacity_bytes=segments * FILE_BYTES)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name != "semblend.lock")


def path_of(folder: Path, number: int) -> Path:
    return folder / segment_file.file_name(key_of(number))


@contextmanager
def stored_segment() -> Iterator[tuple[DiskTier, Path]]:
    """A tier that holds segment 1, and its file (made anew for every hypothesis example)."""
    folder = Path(tempfile.mkdtemp())
    tier = disk(folder)
    try:
        tier.put(segment_of(1))
        yield tier, path_of(folder, 1)
    finally:
        tier.close()
        shutil.rmtree(folder)


def assert_missed_and_deleted(tier: DiskTier, path: Path) -> None:
    assert tier.load(key_of(1)) is None
    assert key_of(1) not in tier
    assert not path.exists()
    assert tier.stats().corrupt == 1
    assert tier.used_bytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_written_is_read_back_bit_for_bit(tmp_path, dtype) -> None:
    kv = torch.randn(3, 2, 4, 2, 6).to(dtype)
    tier = DiskTier(tmp_path, capacity_bytes=1 << 20)
    assert tier.put(Segment(key=key_of(1), kv=kv))
    assert not tier.put(Segment(key=key_of(1), kv=kv))
    loaded = tier.load(key_of(1))
    assert loaded is not None
    assert loaded.key == key_of(1)
    assert loaded.kv.dtype == dtype
    assert torch.equal(loaded.kv, kv)
    assert tier.nbytes(key_of(1)) == kv.nbytes
    assert tier.nbytes(key_of(2)) is None
    tier.close()


@settings(max_examples=150)
@given(st.integers(0, FILE_BYTES * 8 - 1))
def test_any_flipped_bit_is_a_miss(bit: int) -> None:
    with stored_segment() as (tier, path):
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        assert_missed_and_deleted(tier, path)


@settings(max_examples=60)
@given(st.integers(0, FILE_BYTES - 1))
def test_a_file_cut_anywhere_is_a_miss(length: int) -> None:
    with stored_segment() as (tier, path):
        os.truncate(path, length)
        assert_missed_and_deleted(tier, path)


@settings(max_examples=40)
@given(st.integers(0, FILE_BYTES - 1))
def test_a_file_cut_anywhere_is_gone_after_reopening(length: int) -> None:
    with stored_segment() as (tier, path):
        os.truncate(path, length)
        tier.close()
        reopened = disk(path.parent)
        assert len(reopened) == 0
        assert not path.exists()
        assert reopened.stats().corrupt == 1
        reopened.close()


def test_a_file_that_grew_or_was_exchanged_is_a_miss() -> None:
    with stored_segment() as (tier, path):
        path.write_bytes(path.read_bytes() + b"\0")
        assert_missed_and_deleted(tier, path)
    with stored_segment() as (tier, path):
        tier.put(segment_of(2))
        shutil.copyfile(path_of(path.parent, 2), path)
        tier.remove(key_of(2))
        assert_missed_and_deleted(tier, path)


def test_a_header_that_lies_under_a_good_seal_is_corrupt() -> None:
    good = Header(key=key_of(1), shape=(2, 2, 4, 1, 4), dtype=torch.bfloat16, checksum=1)
    assert Header.decode(good.encode(), name="x") == good
    unknown = bytearray(good.encode())
    unknown[4] = 9  # Another version, sealed anew.
    body = bytes(unknown[:-8])
    seal = segment_file._SEAL.pack(segment_file.xxhash.xxh3_64_intdigest(body))
    with pytest.raises(CorruptSegmentError, match="version 1"):
        Header.decode(body + seal, name="x")


def test_reopening_finds_the_segments_in_their_order_of_use(tmp_path) -> None:
    tier = disk(tmp_path)
    for number in range(3):
        tier.put(segment_of(number))
        os.utime(path_of(tmp_path, number), (number, number))
    assert tier.load(key_of(0)) is not None
    tier.close()
    reopened = disk(tmp_path)
    assert reopened.keys() == (key_of(1), key_of(2), key_of(0))
    assert reopened.used_bytes == 3 * FILE_BYTES
    for number in range(3):
        loaded = reopened.load(key_of(number))
        assert loaded is not None
        assert same_kv(loaded, segment_of(number))
    reopened.close()
    smaller = disk(tmp_path, segments=2)
    assert smaller.used_bytes == 2 * FILE_BYTES
    assert len(files(tmp_path)) == 2
    smaller.close()
    none = DiskTier(tmp_path, capacity_bytes=FILE_BYTES - 1)
    assert (len(none), files(tmp_path)) == (0, [])
    none.close()


def test_the_cap_holds_on_the_disk_itself_and_the_oldest_goes_first(tmp_path) -> None:
    tier = disk(tmp_path, segments=3)
    gone = []
    for number in range(10):
        tier.put(segment_of(number), left=gone.append)
        held = files(tmp_path)
        assert sum(path.stat().st_size for path in held) == tier.used_bytes <= tier.capacity_bytes
    assert gone == [key_of(number) for number in range(7)]
    with pytest.raises(CapacityError):
        tier.put(segment_of(99, tokens=64))
    tier.close()


class CrashError(BaseException):
    """Stands for a power cut: nothing after it runs, cleaning up included."""


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_crash_anywhere_in_a_write_leaves_nothing_visible(tmp_path, monkeypatch, call) -> None:
    tier = disk(tmp_path)
    tier.put(segment_of(1))
    real = getattr(os, call)

    def crash(*args: object, **kwargs: object) -> None:
        if call == "write":
            real(args[0], bytes(args[1])[:7])  # type: ignore[call-overload]
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(segment_file.os, call, crash)
        with pytest.raises(CrashError):
            tier.put(segment_of(2))
    assert key_of(2) not in tier
    tier.close()
    reopened = disk(tmp_path)
    assert reopened.keys() == (key_of(1),)
    assert files(tmp_path) == [path_of(tmp_path, 1)]
    assert reopened.put(segment_of(2))
    reopened.close()


WRITER = """
import sys
from semblend.kv.tiers import DiskTier
from tests.kv.segments import segment_of
tier = DiskTier(sys.argv[1], capacity_bytes=1 << 30)
for number in range(100_000):
    tier.put(segment_of(number, tokens=512))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_only_complete_segments(tmp_path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(5):
        last = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    tier = DiskTier(tmp_path, capacity_bytes=1 << 30)
    assert len(tier) > last  # What was reported as stored is there.
    assert tier.stats().corrupt == 0
    for number in range(len(tier)):
        loaded = tier.load(key_of(number, tokens=512))
        assert loaded is not None
        assert same_kv(loaded, segment_of(number, tokens=512))
    assert all(path.suffix == ".kv" for path in files(tmp_path))
    tier.close()


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_full_or_failing_disk_is_a_storage_error_that_leaves_nothing(
    tmp_path, monkeypatch, call
) -> None:
    tier = disk(tmp_path)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segment_file.os, call, fail)
        with pytest.raises(StorageError, match="No space left"):
            tier.put(segment_of(1))
    assert (tier.used_bytes, tier.stats().errors, files(tmp_path)) == (0, 1, [])
    assert tier.put(segment_of(1))
    tier.close()


def test_a_file_that_cannot_be_read_or_is_gone_is_a_storage_error(tmp_path, monkeypatch) -> None:
    tier = disk(tmp_path)
    tier.put(segment_of(1))
    with monkeypatch.context() as patch:

        def fail(*args: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(segment_file.os, "readv", fail)
        with pytest.raises(StorageError, match="Input/output"):
            tier.load(key_of(1))
    assert key_of(1) in tier  # It may be readable again.
    path_of(tmp_path, 1).unlink()
    with pytest.raises(StorageError):
        tier.load(key_of(1))
    assert (len(tier), tier.used_bytes) == (0, 0)
    tier.close()


def test_only_our_own_regular_files_are_ever_touched(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "tier"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / ("a" * 63 + ".kv")).write_text("too short a name")
    link = path_of(folder, 1)
    link.symlink_to(outside)
    partial = link.with_suffix(".partial")
    partial.symlink_to(outside)
    tier = disk(folder)
    assert len(tier) == 0
    with pytest.raises(StorageError):
        tier.put(segment_of(1))  # Would have to write through the link.
    assert outside.read_text() == "precious"
    assert (folder / "notes.txt").read_text() == "mine"
    tier.put(segment_of(2))
    mode = stat.S_IMODE(path_of(folder, 2).stat().st_mode)
    assert mode == 0o600
    tier.close()


def test_two_tiers_never_share_a_folder(tmp_path) -> None:
    first = disk(tmp_path)
    with pytest.raises(StorageError, match="in use by another tier"):
        disk(tmp_path)
    first.close()
    first.close()
    disk(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="disk tier"):
        disk(tmp_path / "file" / "below")


def test_tainted_and_unstorable_kv_is_refused(tmp_path) -> None:
    tier = disk(tmp_path)
    with pytest.raises(DonorError, match="tainted"):
        tier.put(segment_of(1, tainted=True))
    with pytest.raises(StorageError, match="float64"):
        tier.put(segment_of(1, kv=torch.zeros(2, 2, 4, 1, 1, dtype=torch.float64)))
    with pytest.raises(CorruptSegmentError, match="changed before"):
        tier.put(segment_of(1, checksum=5))
    assert (files(tmp_path), tier.used_bytes) == ([], 0)
    assert HEADER_BYTES == 128
    tier.close()
