"""One segment in one file: a fixed header, then the bytes of K/V. Never pickle.

Layout, little-endian: 4 bytes magic, version, type, five sizes, start, namespace, digest, xxh3 of
the payload, zeros, and in the last 8 of 128 bytes the xxh3 of the header before them. One of the
two checksums, or the length, covers every byte of a file. A file is written under another name,
synced and renamed, so it is either complete or absent.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from semblend.core.errors import CorruptSegmentError, DonorError, StorageError
from semblend.core.faults import FaultPoint, fault_point, reach
from semblend.kv.segments import Segment, SegmentKey, kv_bytes, kv_checksum

VERSION = 1
HEADER_BYTES = 128
SUFFIX = ".kv"
PARTIAL_SUFFIX = ".partial"

_MAGIC = b"SBKV"
_FIELDS = struct.Struct("<4sHH5IQ16s32sQ")
_SEAL = struct.Struct("<Q")
_DTYPE_CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.uint8: 4}
_DTYPES = {code: dtype for dtype, code in _DTYPE_CODES.items()}

Empty = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Makes an uninitialised host tensor of a shape and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says about itself."""

    key: SegmentKey
    shape: tuple[int, ...]
    dtype: torch.dtype
    checksum: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of K/V after the header."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    def encode(self) -> bytes:
        """The header's bytes, with their checksum."""
        fields = _FIELDS.pack(
            _MAGIC,
            VERSION,
            _DTYPE_CODES[self.dtype],
            *self.shape,
            self.key.start,
            self.key.namespace,
            self.key.digest,
            self.checksum,
        )
        body = fields.ljust(HEADER_BYTES - _SEAL.size, b"\0")
        return body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))

    @classmethod
    def decode(cls, data: bytes, *, name: str) -> Header:
        """Parse a header.

        Raises
        ------
        CorruptSegmentError
            If any byte differs from what was written, or the version differs.
        """
        body = data[: -_SEAL.size]
        if len(data) != HEADER_BYTES or _SEAL.pack(xxhash.xxh3_64_intdigest(body)) != data[-8:]:
            raise CorruptSegmentError(f"segment file {name}: the header fails its checksum")
        magic, version, code, *sizes, start, namespace, digest, checksum = _FIELDS.unpack_from(data)
        if magic != _MAGIC or version != VERSION or code not in _DTYPES:
            raise CorruptSegmentError(f"segment file {name}: not a segment of version {VERSION}")
        try:
            key = SegmentKey(namespace=namespace, start=start, length=sizes[2], digest=digest)
        except DonorError as error:
            raise CorruptSegmentError(f"segment file {name}: {error}") from error
        return cls(key=key, shape=tuple(sizes), dtype=_DTYPES[code], checksum=checksum)


def file_bytes(segment: Segment) -> int:
    """Size of the segment's file in bytes."""
    return HEADER_BYTES + segment.nbytes


def file_name(key: SegmentKey) -> str:
    """Name of a segment's file: hex digits and a suffix, so it cannot name anything else."""
    return key.name + SUFFIX


def write_segment(directory: Path, segment: Segment) -> None:
    """Write a segment so that it is visible only when complete and on disk.

    Raises
    ------
    StorageError
        If the disk is full or fails. Nothing is left behind.
    CorruptSegmentError
        If the segment changed since its checksum was computed.
    """
    if segment.kv.dtype not in _DTYPE_CODES:
        raise StorageError(
            f"segment of type {segment.kv.dtype}: this type cannot be stored on disk"
        )
    kv = segment.kv.detach().cpu().contiguous()
    checksum = kv_checksum(kv)
    if segment.checksum not in (None, checksum):
        raise CorruptSegmentError(f"segment {segment.key.name[:16]} changed before it was written")
    header = Header(
        key=segment.key, shape=tuple(kv.shape), dtype=kv.dtype, checksum=checksum
    ).encode()
    final = directory / file_name(segment.key)
    partial = final.with_suffix(PARTIAL_SUFFIX)
    try:
        reach(FaultPoint.SLOW_DISK)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o600), "wb", buffering=0) as file:
            for data in (memoryview(header), kv_bytes(kv)):
                _write_all(file.fileno(), data)
            os.fsync(file.fileno())
        os.replace(partial, final)
        sync_directory(directory)
    except OSError as error:
        # Also remove a file that is renamed but not yet synced. Nothing relies on it.
        for path in (partial, final):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise StorageError(f"segment file {final.name}: {error.strerror or error}") from error


def read_header(path: Path) -> Header:
    """Read and check a file's header and length, but not its payload.

    Raises
    ------
    CorruptSegmentError
        If the file is not a complete segment under its own name.
    StorageError
        If it cannot be read.
    """
    try:
        with open(_open_for_reading(path), "rb", buffering=0) as file:
            return _checked_header(file.fileno(), path)
    except CorruptSegmentError:
        raise
    except OSError as error:
        raise StorageError(f"segment file {path.name}: {error.strerror or error}") from error


def read_segment(path: Path, *, pinned: bool = False, empty: Empty | None = None) -> Segment:
    """Read a segment and check every byte. Raises like :func:`read_header`.

    If `empty` is given, it provides the memory.
    """
    try:
        reach(FaultPoint.SLOW_DISK)
        with open(_open_for_reading(path), "rb", buffering=0) as file:
            header = _checked_header(file.fileno(), path)
            reach(FaultPoint.ALLOCATION)
            if empty is None:
                kv = torch.empty(header.shape, dtype=header.dtype, pin_memory=pinned)
            else:
                kv = empty(header.shape, header.dtype)
            _read_all(file.fileno(), kv_bytes(kv), path)
    except CorruptSegmentError:
        raise
    except OSError as error:
        raise StorageError(f"segment file {path.name}: {error.strerror or error}") from error
    if kv_checksum(kv) != header.checksum:
        raise CorruptSegmentError(f"segment file {path.name}: K/V fails its checksum")
    return Segment(key=header.key, kv=kv, checksum=header.checksum)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@fault_point(FaultPoint.DISK_READ)
def _open_for_reading(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _checked_header(descriptor: int, path: Path) -> Header:
    data = os.read(descriptor, HEADER_BYTES)
    header = Header.decode(data, name=path.name)
    if file_name(header.key) != path.name:
        raise CorruptSegmentError(f"segment file {path.name}: holds another segment")
    if os.fstat(descriptor).st_size != HEADER_BYTES + header.payload_bytes:
        raise CorruptSegmentError(f"segment file {path.name}: has the wrong length")
    return header


@fault_point(FaultPoint.DISK_FULL, after=True)
def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read_all(descriptor: int, into: memoryview, path: Path) -> None:
    while into:
        count = os.readv(descriptor, [into])
        if count == 0:
            raise CorruptSegmentError(f"segment file {path.name}: ends early")
        into = into[count:]
