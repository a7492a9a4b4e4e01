"""A directory in one file, so that a new replica need not read the log from the start.

Layout, little-endian: 8 bytes magic, version, length of the JSON head, xxh3 of the head,
the head, then the arrays it names, each with its own xxh3 in the head. Written under
another name, synced and renamed, so it is either complete or absent. Never pickle.
"""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from semblend.core.errors import SerialisationError, StorageError
from semblend.core.json_text import parse_json

VERSION = 1
_MAGIC = b"SBDIRECT"
_FIXED = struct.Struct("<8sIIQ")
_MAX_HEAD_BYTES = 256 * 2**20
_CHUNK_BYTES = 64 * 2**20
_DTYPES = {"|u1", "<u4", "<u8", "<i8"}


def write_snapshot(path: Path, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> int:
    """Write a snapshot; return its size in bytes.

    Raises
    ------
    StorageError
        If the disk is full or fails; an older file is unchanged.
    """
    contents = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    head = json.dumps(
        {
            "meta": meta,
            "arrays": [
                {
                    "name": name,
                    "dtype": array.dtype.str,
                    "shape": list(array.shape),
                    "xxh3": xxhash.xxh3_64_hexdigest(_bytes(array)),
                }
                for name, array in contents.items()
            ],
        }
    ).encode()
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(
                _FIXED.pack(_MAGIC, VERSION, len(head), xxhash.xxh3_64_intdigest(head)) + head
            )
            for array in contents.values():
                file.write(_bytes(array))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"snapshot {path.name}: {error.strerror or error}") from error
    return size


def read_snapshot(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read a snapshot back: (meta, arrays).

    Raises
    ------
    SerialisationError
        If any byte changed since it was written, or the version differs.
    StorageError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = _read_head(file.read(_FIXED.size), file.read, path.name)
            arrays = dict(
                _read_array(record, file.read, path.name, most=size) for record in head["arrays"]
            )
            if file.read(1):
                raise SerialisationError(f"snapshot {path.name}: longer than its header says")
    except OSError as error:
        raise StorageError(f"snapshot {path.name}: {error.strerror or error}") from error
    return head["meta"], arrays


def _read_head(fixed: bytes, read: Any, name: str) -> dict[str, Any]:
    if len(fixed) != _FIXED.size:
        raise SerialisationError(f"snapshot {name}: truncated")
    magic, version, size, checksum = _FIXED.unpack(fixed)
    if magic != _MAGIC or version != VERSION:
        raise SerialisationError(f"snapshot {name}: not a directory of version {VERSION}")
    if size > _MAX_HEAD_BYTES:
        raise SerialisationError(f"snapshot {name}: a head of {size} bytes")
    raw = read(size)
    if xxhash.xxh3_64_intdigest(raw) != checksum:
        raise SerialisationError(f"snapshot {name}: the head fails its checksum")
    head = parse_json(raw)
    if (
        not isinstance(head, dict)
        or not isinstance(head.get("meta"), dict)
        or not isinstance(head.get("arrays"), list)
    ):
        raise SerialisationError(f"snapshot {name}: the head names no arrays")
    return head


def _read_array(record: Any, read: Any, name: str, *, most: int) -> tuple[str, npt.NDArray[Any]]:
    """Read one array and its name; `most` is the file size, which bounds any array."""
    try:
        title, dtype, seal = (str(record[field]) for field in ("name", "dtype", "xxh3"))
        shape = [int(size) for size in record["shape"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SerialisationError(f"snapshot {name}: an array without a {error}") from error
    if dtype not in _DTYPES:
        raise SerialisationError(f"snapshot {name}: arrays of type {dtype[:16]}")
    if min(shape, default=0) < 0 or len(shape) > 2 or prod(shape) > most:
        raise SerialisationError(f"snapshot {name}: {title[:64]} cannot have that shape")
    array = np.empty(shape, dtype=dtype)
    view, at = _bytes(array), 0
    while at < len(view):
        part = read(min(_CHUNK_BYTES, len(view) - at))
        if not part:
            raise SerialisationError(f"snapshot {name}: {title[:64]} is truncated")
        view[at : at + len(part)] = part
        at += len(part)
    if xxhash.xxh3_64_hexdigest(view) != seal:
        raise SerialisationError(f"snapshot {name}: {title[:64]} fails its checksum")
    return title, array


def snapshot_meta(meta: dict[str, Any]) -> tuple[list[Any], list[str], int]:
    """The directory's part of the head: ranks, namespaces, position in the log.

    Raises
    ------
    SerialisationError
        If one of them is malformed.
    """
    ranks, names, position = (meta.get(name) for name in ("ranks", "namespaces", "position"))
    if (
        not isinstance(ranks, list)
        or not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not isinstance(position, int)
    ):
        raise SerialisationError("snapshot: its ranks, namespaces or position are malformed")
    return ranks, names, position


def require_whole(
    arrays: dict[str, npt.NDArray[Any]],
    like: dict[str, npt.NDArray[Any]],
    *,
    capacity: int,
    ranks: int,
) -> None:
    """Check that a snapshot's arrays are consistent and point nowhere outside themselves.

    Raises
    ------
    SerialisationError
        If they are not: a checksum proves how they were written, not that they are right.
    """
    for name, mine in like.items():
        given = arrays.get(name)
        if given is None or given.dtype != mine.dtype or given.ndim != mine.ndim:
            raise SerialisationError(f"snapshot: {name} is missing or has another type")
        if name.startswith("posting_") and given.shape != mine.shape:
            raise SerialisationError(f"snapshot: {name} has another size")
    used = arrays["donor_key"].size
    known = arrays["rank_epoch"].size
    donors = [given for name, given in arrays.items() if name.startswith("donor_")]
    if (
        used > capacity
        or any(given.size != used for given in donors)
        or arrays["rank_live"].size != known
        or known < ranks
        or (used and int(arrays["donor_rank"].max()) >= known)
        or int(arrays["posting_donors"].max(initial=0)) > used
        or int(arrays["rank_live"].min(initial=0)) < 0
        or int(arrays["rank_live"].max(initial=0)) > used
    ):
        raise SerialisationError("snapshot: its arrays are inconsistent")


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
