"""Finds runs inside spans without comparing each pair: a long prompt has many of both."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from semblend.core.plan import Hole

_END = attrgetter("end")


def parts_inside(runs: Sequence[Hole], start: int, end: int) -> Iterator[Hole]:
    """The parts of `runs` inside [start, end). `runs` are merged, so ordered and disjoint."""
    for index in range(bisect_right(runs, start, key=_END), len(runs)):
        run = runs[index]
        if run.start >= end:
            return
        yield Hole(max(run.start, start), min(run.end, end))
