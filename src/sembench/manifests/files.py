"""Reads and writes manifest files one item (one line) at a time.

A path that ends in ``.xz`` or ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from sembench.errors import ManifestError
from sembench.model import ManifestItem

_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError)


def open_text(path: Path, mode: str = "rt") -> IO[str]:
    """Open a text file, compressed or not according to its suffix."""
    # Newlines are part of the format and its checksum, on every platform.
    if path.suffix == ".xz":
        return cast(IO[str], lzma.open(path, mode, encoding="utf-8", newline="\n"))
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, mode, encoding="utf-8", newline="\n"))
    return path.open(mode, encoding="utf-8", newline="\n")


def read_manifest(path: Path, *, max_items: int | None = None) -> Iterator[ManifestItem]:
    """Yield the items of a manifest in order, at most `max_items`.

    Raises
    ------
    ManifestError
        Naming file, line and field; also for a duplicate item id.
    """
    seen: set[str] = set()
    try:
        with open_text(path) as stream:
            for number, line in enumerate(stream, start=1):
                if max_items is not None and len(seen) >= max_items:
                    return
                if not line.strip():
                    continue
                item = ManifestItem.from_line(line, where=f"{path}:{number}")
                if item.item_id in seen:
                    raise ManifestError(f"{path}:{number}.item_id: {item.item_id!r} is a duplicate")
                seen.add(item.item_id)
                yield item
    except _UNREADABLE as error:
        raise ManifestError(f"{path}: cannot be read ({error})") from error


def count_items(path: Path, *, max_items: int | None = None) -> int:
    """How many items :func:`read_manifest` will yield, without parsing them."""
    try:
        with open_text(path) as stream:
            count = sum(1 for line in stream if line.strip())
    except _UNREADABLE as error:
        raise ManifestError(f"{path}: cannot be read ({error})") from error
    return count if max_items is None else min(count, max_items)


def write_manifest(path: Path, items: Iterable[ManifestItem]) -> int:
    """Write `items` as they come and return how many there were.

    The file appears under its name only once it is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keep the suffix last, because it selects the compression.
    unfinished = path.with_name("unfinished." + path.name)
    count = 0
    with open_text(unfinished, "wt") as stream:
        for item in items:
            stream.write(item.to_line())
            count += 1
    os.replace(unfinished, path)
    return count
