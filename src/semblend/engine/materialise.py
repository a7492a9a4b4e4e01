"""Putting a plan's spans in place: donor K/V into the request's own pages, K re-rotated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.layerwise import Check, LayerwiseLoad
from semblend.engine.pages import PageTable
from semblend.engine.pool import PagedPool
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layout import by_slot
from semblend.kv.rotary import RotaryTable
from semblend.kv.span_batch import CopyRuns
from semblend.kv.transfer import copy_spans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorPiece:
    """K/V of donor positions [start, start + tokens) as one tensor."""

    start: int
    kv: torch.Tensor
    """[layers, 2, tokens, kv_heads, head_dim], K rotated to the donor's positions."""

    @property
    def end(self) -> int:
        """First donor position after the piece."""
        return self.start + self.kv.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorKv:
    """A donor's tokens and K/V, in order, while somebody holds a lease on it."""

    tokens: TokenArray
    pieces: tuple[DonorPiece, ...]
    checks: tuple[Check, ...] = ()
    """What is still to be checked of it while it is leased: nothing, unless it was leased so."""


class DonorSource(Protocol):
    """Where donor K/V is leased from."""

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[DonorKv]:
        """K/V that covers donor positions [start, end), kept from eviction meanwhile.

        Raises
        ------
        DonorError
            If the donor is gone.
        StorageError
            If its K/V cannot be read, or fails its checksum.
        """
        ...


@runtime_checkable
class UncheckedSource(Protocol):
    """A donor source that can leave checking to whoever loads, beside other work."""

    def lease_unchecked(
        self, donor_id: str, start: int, end: int
    ) -> AbstractContextManager[DonorKv]:
        """Like :meth:`DonorSource.lease`, at once: all `checks` must pass before an answer that
        rests on the K/V is given."""
        ...


def load_spans(
    plan: Plan,
    tokens: TokenArray,
    *,
    table: PageTable,
    pool: PagedPool,
    rotary: RotaryTable,
    donors: DonorSource,
    drift: DepthDrift | None = None,
) -> int:
    """Copy everything a plan copies; returns the number of tokens put in place.

    Tokens are compared once more against the donor that is really there: between
    planning and loading, an id may have come to mean something else. With `drift`, on the
    pool's device, what moved is shifted to its new depth.
    """
    copied = 0
    slots = table.slots(0, plan.end)
    for donor_id, parts in _by_donor(plan).items():
        with donors.lease(donor_id, *_extent(parts)) as donor:
            runs = CopyRuns()
            _add_runs(runs, donor_id, donor, parts, tokens)
            copied += copy_spans(pool.data, runs.batch(slots), rotary)
    _check_supplied(plan, copied)
    if drift is not None:
        shift_spans(plan, table=table, pool=pool, rotary=rotary, drift=drift)
    return copied


@torch.no_grad()
def shift_spans(
    plan: Plan, *, table: PageTable, pool: PagedPool, rotary: RotaryTable, drift: DepthDrift
) -> None:
    """Shift a plan's copies, which are in place, from their donors' depths to their own."""
    kv = by_slot(pool.data)
    for span in plan.copies:
        move = drift.move(
            source_start=span.donor_start,
            target_start=span.target_start,
            tokens=span.length,
            rotary=rotary,
        )
        if move is None:
            continue
        slots = torch.from_numpy(table.slots(span.target_start, span.target_end).astype(np.int64))
        slots = slots.to(kv.device)
        for layer in range(kv.shape[0]):
            keys, values = kv[layer, 0], kv[layer, 1]
            keys.index_copy_(0, slots, move.keys(layer, keys[slots]))
            values.index_copy_(0, slots, move.values(layer, values[slots]))


@contextmanager
def layerwise_spans(
    plan: Plan,
    tokens: TokenArray,
    *,
    table: PageTable,
    pool: PagedPool,
    rotary: RotaryTable,
    donors: DonorSource,
    stream: torch.cuda.Stream | None,
) -> Iterator[LayerwiseLoad]:
    """Like :func:`load_spans`, but each layer is put in place when the pass comes to it.

    Yields what the pass calls before every layer, whose `checks` must pass before the pass's
    answer is given; donors stay leased until the block ends.
    """
    lease = donors.lease_unchecked if isinstance(donors, UncheckedSource) else donors.lease
    with ExitStack() as leases:
        runs = CopyRuns()
        checks: list[Check] = []
        for donor_id, parts in _by_donor(plan).items():
            donor = leases.enter_context(lease(donor_id, *_extent(parts)))
            checks += donor.checks
            _add_runs(runs, donor_id, donor, parts, tokens)
        batch = runs.batch(table.slots(0, plan.end))
        _check_supplied(plan, len(batch))
        yield LayerwiseLoad(pool.data, batch, rotary, stream=stream, checks=checks)


class _Part(NamedTuple):
    """Donor positions [start, end) that are copied, `delta` further on in the target."""

    start: int
    end: int
    delta: int


def _by_donor(plan: Plan) -> dict[str, list[_Part]]:
    parts: dict[str, list[_Part]] = {}
    for span, start, end in plan.copied_runs():
        delta = span.delta
        parts.setdefault(span.donor_id, []).append(_Part(start - delta, end - delta, delta))
    return parts


def _extent(parts: Sequence[_Part]) -> tuple[int, int]:
    return min(part.start for part in parts), max(part.end for part in parts)


def _add_runs(
    runs: CopyRuns, donor_id: str, donor: DonorKv, parts: Sequence[_Part], tokens: TokenArray
) -> None:
    """Add what to copy out of which piece of a donor that is leased."""
    theirs = np.concatenate([donor.tokens[start:end] for start, end, _ in parts])
    ours = np.concatenate([tokens[start + delta : end + delta] for start, end, delta in parts])
    # A slice that reaches past the donor's end is short: lengths are compared with the plan's.
    planned = sum(end - start for start, end, _ in parts)
    if len(theirs) != planned or not np.array_equal(theirs, ours):
        raise DonorError(f"donor {donor_id!r} does not hold the planned tokens")
    starts = [piece.start for piece in donor.pieces]
    ends = [piece.end for piece in donor.pieces]
    for part_start, part_end, delta in parts:
        # A long prompt has hundreds of parts and pieces: only those that meet are looked at.
        for number in range(bisect_right(ends, part_start), len(ends)):
            start, end = max(part_start, starts[number]), min(part_end, ends[number])
            if start >= end:
                break
            runs.add(
                donor.pieces[number].kv,
                row=start - starts[number],
                source_start=start,
                target_start=start + delta,
                tokens=end - start,
            )


def _check_supplied(plan: Plan, copied: int) -> None:
    if copied != (planned := plan.reused_tokens):
        raise DonorError(f"{planned} tokens planned, donors supplied {copied}")
