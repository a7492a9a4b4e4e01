"""Puts a plan's spans in place: copies donor K/V into the request's pages and re-rotates K."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.donor_pieces import CopiedRun, DonorKv, add_runs, extent
from semblend.kv.layerwise import Check, LayerwiseLoad
from semblend.kv.layout import by_slot
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyRuns
from semblend.kv.transfer import copy_spans


class DonorSource(Protocol):
    """Leases donor K/V."""

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[DonorKv]:
        """K/V that covers donor positions [start, end), protected from eviction.

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
    """A donor source that can leave checking to the caller, in parallel with other work."""

    def lease_unchecked(
        self, donor_id: str, start: int, end: int
    ) -> AbstractContextManager[DonorKv]:
        """Like :meth:`DonorSource.lease`, but without waiting. All `checks` must pass before an
        answer
        based on the K/V is given.
        """
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
    """Copy everything a plan copies and return the number of tokens put in place.

    Tokens are compared again with the actual donor, because an id may have been reassigned between
    planning and loading. With `drift`, on the pool's device, moved K/V is shifted to its new depth.
    """
    copied = 0
    slots = table.slots(0, plan.end)
    for donor_id, wanted in _by_donor(plan).items():
        with donors.lease(donor_id, *extent(wanted)) as donor:
            runs = CopyRuns()
            add_runs(runs, donor_id, donor, wanted, tokens)
            copied += copy_spans(pool.paged, runs.batch(slots), rotary, drift=drift)
    _check_supplied(plan, copied)
    return copied


@torch.no_grad()
def shift_spans(
    plan: Plan, *, table: PageTable, pool: PagedPool, rotary: RotaryTable, drift: DepthDrift
) -> None:
    """Shift a plan's copies, already in place, from their donors' depths to their own.

    For measurements: a lab shifts what it has already loaded and read.
    """
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
    drift: DepthDrift | None = None,
) -> Iterator[LayerwiseLoad]:
    """Like :func:`load_spans`, but each layer is placed when the pass reaches it.

    Yields what the pass calls before every layer. Its `checks` must pass before the pass's result
    is used. Donors stay leased until the block ends.
    """
    lease = donors.lease_unchecked if isinstance(donors, UncheckedSource) else donors.lease
    with ExitStack() as leases:
        runs = CopyRuns()
        checks: list[Check] = []
        for donor_id, wanted in _by_donor(plan).items():
            donor = leases.enter_context(lease(donor_id, *extent(wanted)))
            checks += donor.checks
            add_runs(runs, donor_id, donor, wanted, tokens)
        batch = runs.batch(table.slots(0, plan.end))
        _check_supplied(plan, len(batch))
        yield LayerwiseLoad(pool.paged, batch, rotary, drift=drift, stream=stream, checks=checks)


def _by_donor(plan: Plan) -> dict[str, list[CopiedRun]]:
    wanted: dict[str, list[CopiedRun]] = {}
    for span, start, end in plan.copied_runs():
        delta = span.delta
        wanted.setdefault(span.donor_id, []).append(CopiedRun(start - delta, end - delta, delta))
    return wanted


def _check_supplied(plan: Plan, copied: int) -> None:
    if copied != (planned := plan.reused_tokens):
        raise DonorError(f"{planned} tokens planned, donors supplied {copied}")
