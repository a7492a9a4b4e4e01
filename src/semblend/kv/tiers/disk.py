"""Segments on disk: an index rebuilt from the files, with one owner per folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

from semblend.core.errors import CapacityError, CorruptSegmentError, StorageError
from semblend.core.faults import FaultPoint, fault_point
from semblend.kv.segments import Segment, SegmentKey, require_exact
from semblend.kv.tiers import segment_file
from semblend.kv.tiers.base import TierCounters, TierStats
from semblend.kv.tiers.leased_lru import Entry, LeasedLru

_OURS = re.compile(rf"^[0-9a-f]{{64}}({re.escape(segment_file.SUFFIX)}|\.partial)$")
_LOCK_NAME = "semblend.lock"


class DiskTier:
    """Segment files in one folder within a hard limit on their total size.

    Other files are neither counted nor touched. Two processes never share a folder, because the
    limit could not be enforced.
    """

    name = "disk"

    def __init__(self, directory: Path | str, *, capacity_bytes: int, pinned: bool = False) -> None:
        self.directory = Path(directory)
        self._pinned = pinned
        self._table: LeasedLru[int] = LeasedLru(capacity_bytes, discard=self._unlink)
        self._counters = TierCounters()
        self._owner = self._own_directory()
        try:
            self._rebuild()
        except BaseException:
            self.close()
            raise

    @property
    def capacity_bytes(self) -> int:
        return self._table.capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of files held or being written, never above the limit."""
        return self._table.used_bytes

    def __contains__(self, key: SegmentKey) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def keys(self) -> tuple[SegmentKey, ...]:
        """Keys, least recently used first."""
        return self._table.keys()

    def nbytes(self, key: SegmentKey) -> int | None:
        """Bytes of a segment's K/V, or None if it is not here."""
        entry = self._table.lease(key)
        if entry is None:
            return None
        self._table.release(entry)
        return entry.nbytes - segment_file.HEADER_BYTES

    @fault_point(FaultPoint.TIER_WRITE)
    def put(self, segment: Segment, *, left: Callable[[SegmentKey], None] = lambda _: None) -> bool:
        """Write a segment. False if it is already here.

        Raises
        ------
        DonorError
            If the segment is tainted.
        StorageError
            If it does not fit, or the disk is full or fails. Nothing is left behind.
        """
        require_exact(segment)

        def write() -> int:
            segment_file.write_segment(self.directory, segment)
            return segment.nbytes

        def gone(victim: SegmentKey) -> None:
            self._counters.add("evictions")
            left(victim)

        try:
            size = segment_file.file_bytes(segment)
            return self._table.admit(segment.key, size, write, left=gone)
        except CapacityError:
            raise
        except StorageError:
            self._counters.add("errors")
            raise

    @fault_point(FaultPoint.TIER_READ)
    def load(self, key: SegmentKey, *, empty: segment_file.Empty | None = None) -> Segment | None:
        """Read a segment and check every byte. A corrupt one is deleted, counted and missed.

        If `empty` is given, it provides the memory.

        Raises
        ------
        StorageError
            If the disk fails.
        """
        entry = self._table.lease(key)
        if entry is None:
            self._counters.add("misses")
            return None
        path = self.directory / segment_file.file_name(key)
        try:
            segment = segment_file.read_segment(path, pinned=self._pinned, empty=empty)
            with contextlib.suppress(OSError):  # makes the order of use survive the process
                os.utime(path, follow_symlinks=False)
        except CorruptSegmentError:
            self._table.remove(key, generation=entry.generation)
            self._counters.add("corrupt")
            self._counters.add("misses")
            return None
        except OSError as error:
            self._counters.add("errors")
            if not path.exists():  # deleted by someone else
                self._table.remove(key, generation=entry.generation)
            raise StorageError(f"segment file {path.name}: {error}") from error
        finally:
            self._table.release(entry)
        self._counters.add("hits")
        return segment

    def remove(self, key: SegmentKey) -> bool:
        return self._table.remove(key)

    def stats(self) -> TierStats:
        counters = self._counters
        return TierStats(
            name=self.name,
            used_bytes=self.used_bytes,
            capacity_bytes=self.capacity_bytes,
            segments=len(self._table),
            leased=self._table.leased(),
            hits=counters.hits,
            misses=counters.misses,
            evictions=counters.evictions,
            corrupt=counters.corrupt,
            errors=counters.errors,
        )

    def close(self) -> None:
        """Release the folder. The files stay."""
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _own_directory(self) -> int | None:
        """Create the folder, readable by its owner only, and lock it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.directory / _LOCK_NAME, flags, 0o600)
        except OSError as error:
            raise StorageError(f"disk tier {self.directory}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"disk tier {self.directory} is in use by another tier; give each its own folder"
            ) from error
        return descriptor

    def _rebuild(self) -> None:
        """Index the complete files, oldest use first, and delete incomplete or corrupt ones.

        Files that cannot be read or deleted are counted and skipped: one bad block must not keep an
        engine from starting.
        """
        found: list[tuple[float, Path]] = []
        for item in os.scandir(self.directory):
            if not _OURS.match(item.name) or not item.is_file(follow_symlinks=False):
                continue
            try:
                if item.name.endswith(segment_file.PARTIAL_SUFFIX):
                    os.unlink(item.path)
                else:
                    found.append((item.stat(follow_symlinks=False).st_mtime, Path(item.path)))
            except OSError:
                self._counters.add("errors")
        for _, path in sorted(found):
            try:
                self._index(path)
            except OSError:
                self._counters.add("errors")

    def _index(self, path: Path) -> None:
        try:
            header = segment_file.read_header(path)
        except CorruptSegmentError:
            self._counters.add("corrupt")
            path.unlink()
            return
        size = segment_file.HEADER_BYTES + header.payload_bytes
        if size > self.capacity_bytes:
            path.unlink()
            return
        self._table.admit(header.key, size, lambda: header.payload_bytes)

    def _unlink(self, entry: Entry[int]) -> None:
        path = self.directory / segment_file.file_name(entry.key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"segment file {path.name}: {error.strerror or error}") from error
