"""Identical token runs between a target and donors, found exactly.

Every window of a given length gets a *name* such that two windows share a name exactly
when their tokens are equal (Karp, Miller and Rosenberg, 1972): names for length 2m come
from pairs of names for length m. This takes a few sorts and no hashing, so nothing needs
verification and no collision can change a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sembench.blocks import BoolArray, TokenArray

IntArray = npt.NDArray[np.int64]


def window_names(tokens: npt.NDArray[np.integer], size: int) -> IntArray:
    """Name every window tokens[i:i+size], shape [len(tokens) - size + 1].

    Names are equal if and only if the windows are.
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}")
    if len(tokens) < size:
        return np.empty(0, dtype=np.int64)
    names: IntArray = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    width = 1
    while width * 2 <= size:
        names = _pair(names[:-width], names[width:])
        width *= 2
    if width < size:
        # Two overlapping power-of-two windows cover any other length.
        shift = size - width
        names = _pair(names[:-shift], names[shift:])
    return names


def _pair(first: IntArray, second: IntArray) -> IntArray:
    both = first * (int(second.max(initial=0)) + 1) + second
    names: IntArray = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """Where the target's windows of one length appear in the donors."""

    size: int
    found: BoolArray
    """Whether the window at each target position occurs in a donor, shape [windows]."""
    donor: IntArray
    """Index of the first donor that has it, shape [windows]; -1 if none does."""
    start: IntArray
    """Its first position in that donor, shape [windows]; -1 if there is none."""


def find_windows(target: TokenArray, donors: Sequence[TokenArray], size: int) -> Occurrences:
    """Find every window of `size` target tokens that also appears in one donor."""
    windows = max(0, len(target) - size + 1)
    lengths = [len(donor) for donor in donors]
    names = window_names(np.concatenate([target, *donors]), size)
    # Windows that cross from one text into the next belong to neither.
    donor_of = np.full(len(names), -1, dtype=np.int64)
    start_of = np.full(len(names), -1, dtype=np.int64)
    begin = len(target)
    for index, length in enumerate(lengths):
        inside = max(0, length - size + 1)
        donor_of[begin : begin + inside] = index
        start_of[begin : begin + inside] = np.arange(inside)
        begin += length
    held = np.flatnonzero(donor_of >= 0)
    first = np.full(int(names.max(initial=-1)) + 1, -1, dtype=np.int64)
    # Written back to front, so that the first occurrence wins.
    first[names[held[::-1]]] = held[::-1]
    place = first[names[:windows]]
    found = place >= 0
    return Occurrences(
        size=size,
        found=found,
        donor=np.where(found, donor_of[place], -1),
        start=np.where(found, start_of[place], -1),
    )


def covered_positions(target: TokenArray, donors: Sequence[TokenArray], size: int) -> BoolArray:
    """Mark target positions in runs of at least `size` tokens identical in one donor."""
    found = find_windows(target, donors, size).found
    edges = np.zeros(len(target) + 1, dtype=np.int64)
    starts = np.flatnonzero(found)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + size, -1)
    covered: BoolArray = np.cumsum(edges)[:-1] > 0
    return covered


def covered_share(target: TokenArray, donors: Sequence[TokenArray], size: int) -> float:
    """Share of target tokens in runs of at least `size` tokens identical in one donor."""
    return float(covered_positions(target, donors, size).mean()) if len(target) else 0.0


def run_length(target: TokenArray, donor: TokenArray, target_start: int, donor_start: int) -> int:
    """How many tokens are equal starting at the two positions."""
    length = min(len(target) - target_start, len(donor) - donor_start)
    differs = target[target_start : target_start + length] != donor[donor_start:][:length]
    return int(np.argmax(differs)) if differs.any() else length
