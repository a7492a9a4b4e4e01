"""The ceiling: a planner that knows every identical run.

A full block can be eligible only if one donor contains its tokens contiguously. The oracle
proposes exactly those blocks, so no planner of identical spans has a higher eligible rate.
It then fills the rest from runs of at least one block, which is the ceiling of the
candidate rate for that minimum run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sembench.blocks import BoolArray, ProposedSpan, TokenArray
from sembench.planners.base import PlannerDonor, PlannerRequest, PlannerSettings
from sembench.runs import Occurrences, find_windows, run_length


class OraclePlanner:
    """Proposes all identical runs of at least one block, whole blocks first."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._size = settings.block_size
        self._donors: dict[str, TokenArray] = {}

    def register(self, donor: PlannerDonor) -> None:
        self._donors[donor.donor_id] = donor.tokens

    def forget(self, donor_id: str) -> None:
        self._donors.pop(donor_id, None)

    def describe(self) -> Mapping[str, Any]:
        """Its name and minimum run."""
        return {"name": "oracle", "min_run_tokens": self._size}

    def plan(self, request: PlannerRequest) -> Sequence[ProposedSpan]:
        """All runs; spans do not overlap."""
        names, donors = list(self._donors), list(self._donors.values())
        target = request.tokens
        found = find_windows(target, donors, self._size)
        covered: BoolArray = np.zeros(len(target), dtype=np.bool_)
        spans = []
        for donor, donor_start, target_start, length in [
            *self._whole_blocks(target, donors, found, covered),
            *self._fill(target, donors, found, covered),
        ]:
            spans.append(
                ProposedSpan(
                    donor_id=names[donor],
                    donor_start=donor_start,
                    target_start=target_start,
                    length=length,
                )
            )
        return sorted(spans, key=lambda span: span.target_start)

    def _whole_blocks(
        self,
        target: TokenArray,
        donors: Sequence[TokenArray],
        found: Occurrences,
        covered: BoolArray,
    ) -> Iterator[tuple[int, int, int, int]]:
        size = self._size
        end = 0
        for start in (np.flatnonzero(found.found[::size]) * size).tolist():
            if start < end:
                continue
            donor, place = int(found.donor[start]), int(found.start[start])
            # Cut to whole blocks, so that a tail does not block the next block's own run.
            length = run_length(target, donors[donor], start, place) // size * size
            end = start + length
            covered[start:end] = True
            yield donor, place, start, length

    def _fill(
        self,
        target: TokenArray,
        donors: Sequence[TokenArray],
        found: Occurrences,
        covered: BoolArray,
    ) -> Iterator[tuple[int, int, int, int]]:
        start, windows = 0, len(found.found)
        while start < windows:
            if not found.found[start]:
                start += int(np.argmax(found.found[start:])) or windows
                continue
            donor, place = int(found.donor[start]), int(found.start[start])
            length = run_length(target, donors[donor], start, place)
            for piece_start, piece_end in _gaps(covered, start, start + length):
                covered[piece_start:piece_end] = True
                yield donor, place + piece_start - start, piece_start, piece_end - piece_start
            # Windows further inside this run reach past it only if another donor continues.
            start += length - self._size + 1


def _gaps(covered: BoolArray, start: int, end: int) -> list[tuple[int, int]]:
    """The maximal uncovered runs in [start, end)."""
    edges = np.flatnonzero(np.diff(covered[start:end].astype(np.int8), prepend=1, append=1))
    return [
        (start + int(first), start + int(last)) for first, last in edges.reshape(-1, 2).tolist()
    ]
