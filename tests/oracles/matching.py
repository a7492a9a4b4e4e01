"""Brute force: which target tokens lie in a run of at least `length` that a donor holds too.

Works on sets of tuples of plain integers, so that it shares no idea with the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def covered_positions(
    target: Sequence[int], donors: Iterable[Sequence[int]], length: int = 32
) -> set[int]:
    held = {
        tuple(donor[start : start + length])
        for donor in map(list, donors)
        for start in range(len(donor) - length + 1)
    }
    target = list(target)
    covered: set[int] = set()
    for start in range(len(target) - length + 1):
        if tuple(target[start : start + length]) in held:
            covered.update(range(start, start + length))
    return covered
