"""A directory in one file, so that a new replica need not read the log from its beginning.

Layout, little-endian: 8 bytes magic, version, length of the JSON head, xxh3 of the head,
the head, then the arrays it names, each with its own xxh3 in the head. Written under
another name, synced and renamed: complete or not there. Never pickle.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from semblend.core.errors import SerialisationError, StorageError

VERSION = 1
_MAGIC = b"SBDIRECT"
_FIXED = struct.Struct("<8sIIQ")
_MAX_HEAD_BYTES = 256 * 2**20
_CHUNK_BYTES = 64 * 2**20
_DTYPES = {"|u1", "<u4", "<u8", "<i8"}


def write_snapshot(path: Path, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> int:
    """Write a snapshot; returns its size in bytes.

    Raises
    ------
    StorageError
        If the disk is full or fails; an older file stays as it was.
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
        If any byte is not what was written, or it is of another version.
    StorageError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            head = _read_head(file.read(_FIXED.size), file.read, path.name)
            arrays = {
                record["name"]: _read_array(record, file.read, path.name)
                for record in head["arrays"]
            }
            if file.read(1):
                raise SerialisationError(f"snapshot {path.name}: longer than it says")
    except OSError as error:
        raise StorageError(f"snapshot {path.name}: {error.strerror or error}") from error
    return head["meta"], arrays


def _read_head(fixed: bytes, read: Any, name: str) -> dict[str, Any]:
    if len(fixed) != _FIXED.size:
        raise SerialisationError(f"snapshot {name}: ends early")
    magic, version, size, checksum = _FIXED.unpack(fixed)
    if magic != _MAGIC or version != VERSION:
        raise SerialisationError(f"snapshot {name}: not a directory of version {VERSION}")
    if size > _MAX_HEAD_BYTES:
        raise SerialisationError(f"snapshot {name}: a head of {size} bytes")
    raw = read(size)
    if xxhash.xxh3_64_intdigest(raw) != checksum:
        raise SerialisationError(f"snapshot {name}: the head fails its checksum")
    head: dict[str, Any] = json.loads(raw)
    return head


def _read_array(record: dict[str, Any], read: Any, name: str) -> npt.NDArray[Any]:
    if record["dtype"] not in _DTYPES:
        raise SerialisationError(f"snapshot {name}: arrays of type {record['dtype']}")
    array = np.empty(record["shape"], dtype=record["dtype"])
    view, at = _bytes(array), 0
    while at < len(view):
        part = read(min(_CHUNK_BYTES, len(view) - at))
        if not part:
            raise SerialisationError(f"snapshot {name}: {record['name']} ends early")
        view[at : at + len(part)] = part
        at += len(part)
    if xxhash.xxh3_64_hexdigest(view) != record["xxh3"]:
        raise SerialisationError(f"snapshot {name}: {record['name']} fails its checksum")
    return array


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
