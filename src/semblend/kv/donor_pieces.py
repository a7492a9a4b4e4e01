"""A donor's K/V while leased, and a plan's spans split along its pieces."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.tokens import TokenArray
from semblend.kv.layerwise import Check
from semblend.kv.span_batch import CopyRuns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorPiece:
    """K/V of donor positions [start, start + tokens) as one tensor."""

    start: int
    kv: torch.Tensor
    """[layers, 2, tokens, kv_heads, head_dim], K rotated to the donor's positions."""

    @property
    def end(self) -> int:
        """First donor position after the piece."""
        return self.start + int(self.kv.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorKv:
    """A donor's tokens and K/V, in order, while it is leased."""

    tokens: TokenArray
    pieces: tuple[DonorPiece, ...]
    checks: tuple[Check, ...] = ()
    """Checks that remain to be done while it is leased; empty unless leased unchecked."""


class CopiedRun(NamedTuple):
    """Donor positions [start, end) to copy, `delta` further on in the target."""

    start: int
    end: int
    delta: int


def extent(wanted: Iterable[CopiedRun]) -> tuple[int, int]:
    """The donor positions from the first to the last copied."""
    starts, ends, _ = zip(*wanted, strict=True)
    return min(starts), max(ends)


def add_runs(
    runs: CopyRuns, donor_id: str, donor: DonorKv, wanted: Sequence[CopiedRun], tokens: TokenArray
) -> None:
    """Add what to copy from which piece of a leased donor.

    `tokens` are the target's. They are compared again with the actual donor, because an id may have
    been reassigned between planning and loading.

    Raises
    ------
    DonorError
        If the donor does not hold the planned tokens.
    """
    theirs = np.concatenate([donor.tokens[start:end] for start, end, _ in wanted])
    ours = np.concatenate([tokens[start + delta : end + delta] for start, end, delta in wanted])
    # A slice past the donor's end is short, so compare its length with the plan's.
    planned = sum(end - start for start, end, _ in wanted)
    if len(theirs) != planned or not np.array_equal(theirs, ours):
        raise DonorError(f"donor {donor_id!r} does not hold the planned tokens")
    starts = [piece.start for piece in donor.pieces]
    ends = [piece.end for piece in donor.pieces]
    for run_start, run_end, delta in wanted:
        # A long prompt has hundreds of runs and pieces, so visit only those that meet.
        for number in range(bisect_right(ends, run_start), len(ends)):
            start, end = max(run_start, starts[number]), min(run_end, ends[number])
            if start >= end:
                break
            runs.add(
                donor.pieces[number].kv,
                row=start - starts[number],
                source_start=start,
                target_start=start + delta,
                tokens=end - start,
                span_offset=start - run_start,
            )
