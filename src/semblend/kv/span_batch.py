"""What is to be copied: spans as a caller states them, and checked flat batches for kernels.

Everything a kernel takes on trust (slots in range, written once, not read and
written in one call, positions with rows) is checked here, on the host, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """All tokens to copy, flat: one entry a token in every array. Holds at least one token."""

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


def flat_batch(
    destination: torch.Tensor, copies: Sequence[SpanCopy], table: RotaryTable
) -> CopyBatch | None:
    """All spans as one checked batch; None if there is nothing to copy.

    Raises
    ------
    PlanError
        Naming what does not fit.
    """
    spans = [copy for copy in copies if len(copy)]
    if not spans:
        return None
    batch = _flatten(spans)
    # Segments of one donor are alike: a shape is checked once.
    for source in {(s.shape, s.dtype): s for s in batch.sources}.values():
        _check_source(source, destination, table)
    _check_slots(batch, destination)
    table.check_positions(0, int(max(batch.source_positions.max(), batch.target_positions.max())))
    return batch


def _flatten(spans: Sequence[SpanCopy]) -> CopyBatch:
    numbers: dict[int, int] = {}
    sources: list[torch.Tensor] = []
    rows: list[tuple[int, int, int, int]] = []
    for copy in spans:
        number = numbers.setdefault(id(copy.source), len(sources))
        if number == len(sources):
            sources.append(by_slot(copy.source))
        rows.append((len(copy), number, copy.source_start, copy.target_start))
    lengths, source_of, source_starts, target_starts = np.array(rows, dtype=np.int64).T
    before = np.cumsum(lengths) - lengths
    at = np.arange(int(lengths.sum()), dtype=np.int64)
    return CopyBatch(
        sources=tuple(sources),
        source_numbers=np.repeat(source_of, lengths),
        source_slots=np.concatenate([copy.source_slots for copy in spans]),
        target_slots=np.concatenate([copy.target_slots for copy in spans]),
        source_positions=at + np.repeat(source_starts - before, lengths),
        target_positions=at + np.repeat(target_starts - before, lengths),
    )


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
    rows = np.array([source.shape[2] for source in batch.sources])[batch.source_numbers]
    if int(batch.source_slots.min()) < 0 or bool((batch.source_slots >= rows).any()):
        raise PlanError(f"span copies: source slots in [0, {int(rows.min())}) expected")
    slots = destination.shape[2]
    if not 0 <= int(batch.target_slots.min()) <= int(batch.target_slots.max()) < slots:
        raise PlanError(f"span copies: target slots in [0, {slots}) expected")
    written = np.zeros(slots, dtype=bool)
    written[batch.target_slots] = True
    if int(np.count_nonzero(written)) != len(batch):
        raise PlanError("span copies: a target slot is written twice")
    storage = destination.untyped_storage()
    pool = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    for number, source in enumerate(batch.sources):
        if source.data_ptr() in pool:
            read = batch.source_slots[batch.source_numbers == number]
            # A view of part of the pool would count its slots from elsewhere.
            if source.data_ptr() != destination.data_ptr() or bool(written[read].any()):
                raise PlanError("span copies: a slot is read and written in one call")
