"""What is to be copied: spans as a caller states them, and checked flat batches for kernels.

Everything a kernel takes on trust (slots in range, written once, not read and
written in one call, positions with rows) is checked here, on the host, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import numpy.typing as npt
import torch

from semblend.core.errors import PlanError
from semblend.kv.layout import SlotArray, by_slot
from semblend.kv.rotary_table import RotaryTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanCopy:
    """One span to copy: which rows of which source, into which slots, from where to where."""

    source: torch.Tensor
    """A segment [layers, 2, tokens, kv_heads, head_dim] or a pool (see `kv.layout`)."""
    source_slots: SlotArray
    """Rows of the source, shape [tokens]; on the host, where plans are made."""
    target_slots: SlotArray
    """Slots of the destination pool, shape [tokens]."""
    source_start: int
    """Position at which the first token's K was computed."""
    target_start: int
    """Position at which it shall stand."""

    def __post_init__(self) -> None:
        for name in ("source_slots", "target_slots"):
            slots = getattr(self, name)
            if slots.dtype != np.int64 or not slots.flags.c_contiguous:
                object.__setattr__(self, name, np.ascontiguousarray(slots, dtype=np.int64))
        if self.source_slots.ndim != 1 or self.source_slots.shape != self.target_slots.shape:
            raise PlanError(
                f"span copy: as many source as target slots expected, got "
                f"{self.source_slots.shape} and {self.target_slots.shape}"
            )
        if self.source_start < 0 or self.target_start < 0:
            raise PlanError(
                f"span copy: starts at 0 or later expected, got source_start={self.source_start} "
                f"and target_start={self.target_start}"
            )

    def __len__(self) -> int:
        return int(self.source_slots.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyBatch:
    """All tokens to copy, flat: one entry a token in every array."""

    sources: tuple[torch.Tensor, ...]
    """Each [layers, 2, slots, kv_heads, head_dim]; slots differ."""
    source_numbers: SlotArray
    """Which of the sources a token is read from."""
    source_slots: SlotArray
    target_slots: SlotArray
    source_positions: SlotArray
    target_positions: SlotArray

    def __len__(self) -> int:
        return int(self.source_slots.size)

    def part(self, which: npt.NDArray[np.bool_]) -> CopyBatch:
        """Some of the tokens."""
        return replace(
            self,
            source_numbers=self.source_numbers[which],
            source_slots=self.source_slots[which],
            target_slots=self.target_slots[which],
            source_positions=self.source_positions[which],
            target_positions=self.target_positions[which],
        )

    def of_sources(self, wanted: Sequence[bool]) -> CopyBatch:
        """The tokens of some of the sources, one flag a source; the others are left out."""
        if all(wanted):
            return self
        kept = np.array(wanted)
        part = self.part(kept[self.source_numbers])
        return replace(
            part,
            sources=tuple(compress(self.sources, wanted)),
            source_numbers=(np.cumsum(kept) - 1)[part.source_numbers],
        )


class CopyRuns:
    """Collects runs of tokens out of any number of sources, to become one batch.

    A long prompt is hundreds of runs, and its kernel waits: no array is made for one of them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._sources: list[torch.Tensor] = []
        self._runs: list[tuple[int, int, int, int, int]] = []

    def add(
        self, source: torch.Tensor, *, row: int, source_start: int, target_start: int, tokens: int
    ) -> None:
        """Rows [row, row + tokens) of a source, at least one; positions are the first one's."""
        number = self._numbers.setdefault(id(source), len(self._sources))
        if number == len(self._sources):
            self._sources.append(source)
        self._runs.append((number, row, source_start, target_start, tokens))

    def batch(self, target_slots: SlotArray) -> CopyBatch:
        """All runs, not yet checked against a pool.

        Parameters
        ----------
        target_slots
            Slots of the prompt's positions from 0 on, shape [positions].

        Raises
        ------
        PlanError
            If a run begins before 0, or reaches a position that has no slot.
        """
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 5).T
        if (least := int(runs.min(initial=0))) < 0:
            raise PlanError(f"copy runs: rows and positions of 0 or more expected, got {least}")
        starts, lengths = runs[:4], runs[4]
        if (end := int((starts[3] + lengths).max(initial=0))) > len(target_slots):
            raise PlanError(f"copy runs: {end} target slots expected, got {len(target_slots)}")
        numbers, source_slots, source_positions, target_positions = _along(starts, lengths)
        return CopyBatch(
            sources=tuple(map(by_slot, self._sources)),
            source_numbers=numbers,
            source_slots=source_slots,
            target_slots=target_slots[target_positions],
            source_positions=source_positions,
            target_positions=target_positions,
        )


def flat_batch(
    destination: torch.Tensor, copies: Sequence[SpanCopy] | CopyBatch, table: RotaryTable
) -> CopyBatch | None:
    """All spans as one checked batch; None if there is nothing to copy.

    Raises
    ------
    PlanError
        Naming what does not fit.
    """
    batch = flattened(copies)
    if not len(batch):
        return None
    # Segments of one donor are alike: a shape is checked once.
    for source in {(s.shape, s.dtype): s for s in batch.sources}.values():
        _check_source(source, destination, table)
    _check_slots(batch, destination)
    table.check_positions(0, int(max(batch.source_positions.max(), batch.target_positions.max())))
    return batch


def flattened(copies: Sequence[SpanCopy] | CopyBatch) -> CopyBatch:
    """All spans as one batch, not yet checked against a pool."""
    if isinstance(copies, CopyBatch):
        return copies
    spans = [copy for copy in copies if len(copy)]
    if not spans:
        return CopyRuns().batch(np.empty(0, dtype=np.int64))
    sources = {id(copy.source): copy.source for copy in spans}
    numbers = {source: number for number, source in enumerate(sources)}
    runs = np.array(
        [(numbers[id(c.source)], c.source_start, c.target_start, len(c)) for c in spans],
        dtype=np.int64,
    ).T
    source_numbers, source_positions, target_positions = _along(runs[:3], runs[3])
    return CopyBatch(
        sources=tuple(map(by_slot, sources.values())),
        source_numbers=source_numbers,
        source_slots=np.concatenate([copy.source_slots for copy in spans]),
        target_slots=np.concatenate([copy.target_slots for copy in spans]),
        source_positions=source_positions,
        target_positions=target_positions,
    )


def _along(starts: SlotArray, lengths: SlotArray) -> SlotArray:
    """What runs start with, [kinds, runs], for each of their tokens, [kinds, tokens].

    The first kind, the number of a source, stays along a run; the others count up.
    """
    shifted = starts.copy()
    shifted[1:] -= lengths.cumsum() - lengths
    along: SlotArray = shifted.repeat(lengths, axis=1)
    along[1:] += np.arange(along.shape[1])
    return along


def _check_source(source: torch.Tensor, destination: torch.Tensor, table: RotaryTable) -> None:
    if (
        source.shape[:2] != destination.shape[:2]
        or source.shape[3:] != destination.shape[3:]
        or source.dtype != destination.dtype
    ):
        raise PlanError(
            f"span copies: source {tuple(source.shape)} {source.dtype} does not fit a pool of "
            f"{tuple(destination.shape)} {destination.dtype}"
        )
    if table.rotary_dim > source.shape[-1]:
        raise PlanError(
            f"span copies: rows rotate {table.rotary_dim} numbers, heads have {source.shape[-1]}"
        )


def _check_slots(batch: CopyBatch, destination: torch.Tensor) -> None:
    rows = np.array([source.shape[2] for source in batch.sources]).take(batch.source_numbers)
    if int(batch.source_slots.min()) < 0 or bool((batch.source_slots >= rows).any()):
        raise PlanError(f"span copies: source slots in [0, {int(rows.min())}) expected")
    slots = destination.shape[2]
    low, high = int(batch.target_slots.min()), int(batch.target_slots.max())
    if not 0 <= low <= high < slots:
        raise PlanError(f"span copies: target slots in [0, {slots}) expected")
    if not _all_different(batch.target_slots, low, high):
        raise PlanError("span copies: a target slot is written twice")
    storage = destination.untyped_storage()
    pool = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    for number, source in enumerate(batch.sources):
        if source.data_ptr() in pool:
            read = batch.source_slots[batch.source_numbers == number]
            written = np.isin(read, batch.target_slots)
            # A view of part of the pool would count its slots from elsewhere.
            if source.data_ptr() != destination.data_ptr() or bool(written.any()):
                raise PlanError("span copies: a slot is read and written in one call")


def _all_different(slots: SlotArray, low: int, high: int) -> bool:
    """Whether no slot of [low, high] comes twice; those of one request mostly rise."""
    if bool((slots[1:] > slots[:-1]).all()):
        return True
    seen = np.zeros(high + 1 - low, dtype=bool)
    seen[slots - low] = True
    return int(np.count_nonzero(seen)) == slots.size
