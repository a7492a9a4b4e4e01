"""Stable ids: the same parts give the same id on every machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

SEPARATOR = "\x1f"
"""ASCII unit separator, which never occurs in dataset names, source ids or transforms."""


def stable_id(*parts: str) -> str:
    """The first 16 hexadecimal digits of sha256 over `parts` joined by the unit separator.

    >>> stable_id("qasper", "17", "rag_reorder") == stable_id("qasper", "17", "rag_reorder")
    True
    """
    return hashlib.sha256(SEPARATOR.join(parts).encode("utf-8")).hexdigest()[:16]


def item_id(dataset: str, source_id: str, transform: str) -> str:
    return stable_id(dataset, source_id, transform)


def donor_id(item: str) -> str:
    """The id of an item's only donor."""
    return stable_id(item, "donor")


def segment_donor_id(item: str, index: int) -> str:
    """The id of donor number `index`, for items with several donors."""
    return stable_id(item, "segment", str(index))


def file_sha256(path: Path) -> str:
    """sha256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
