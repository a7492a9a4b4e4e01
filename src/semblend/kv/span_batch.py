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
            slots = np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            object.__setattr__(self, name, slots)
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
    """All tokens to copy from one source, flat: one entry a token in every array."""

    source: torch.Tensor
    """[layers, 2, slots, kv_heads, head_dim]."""
    source_slots: SlotArray
    target_slots: SlotArray
    source_positions: SlotArray
    target_positions: SlotArray

    def __len__(self) -> int:
        return int(self.source_slots.size)

    def part(self, which: npt.NDArray[np.bool_] | slice) -> CopyBatch:
        """Some of the tokens."""
        return replace(
            self,
            source_slots=self.source_slots[which],
            target_slots=self.target_slots[which],
            source_positions=self.source_positions[which],
            target_positions=self.target_positions[which],
        )


def flat_batches(
    destination: torch.Tensor, copies: Sequence[SpanCopy], table: RotaryTable
) -> list[CopyBatch]:
    """Group spans by source, one batch a source, and check them.

    Raises
    ------
    PlanError
        Naming what does not fit.
    """
    by_source: dict[tuple[int, torch.Size], list[SpanCopy]] = {}
    for copy in copies:
        key = (copy.source.data_ptr(), copy.source.shape)
        by_source.setdefault(key, []).append(copy)
    batches = [_flatten(group) for group in by_source.values()]
    written = np.zeros(destination.shape[2], dtype=bool)
    for batch in batches:
        _check(batch, destination, table)
        if written[batch.target_slots].any():
            raise PlanError("span copies: a target slot is written twice")
        written[batch.target_slots] = True
    tokens = sum(int(batch.target_slots.size) for batch in batches)
    if int(written.sum()) != tokens:
        raise PlanError("span copies: a target slot is written twice")
    for batch in batches:
        if _share_memory(batch.source, destination) and written[batch.source_slots].any():
            raise PlanError("span copies: a slot is read and written in one call")
    return batches


def _flatten(group: Sequence[SpanCopy]) -> CopyBatch:
    offsets = [np.arange(len(copy), dtype=np.int64) for copy in group]
    return CopyBatch(
        source=by_slot(group[0].source),
        source_slots=np.concatenate([copy.source_slots for copy in group]),
        target_slots=np.concatenate([copy.target_slots for copy in group]),
        source_positions=np.concatenate(
            [copy.source_start + at for copy, at in zip(group, offsets, strict=True)]
        ),
        target_positions=np.concatenate(
            [copy.target_start + at for copy, at in zip(group, offsets, strict=True)]
        ),
    )


def _check(batch: CopyBatch, destination: torch.Tensor, table: RotaryTable) -> None:
    source = batch.source
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
    for name, slots, limit in (
        ("source", batch.source_slots, source.shape[2]),
        ("target", batch.target_slots, destination.shape[2]),
    ):
        if not 0 <= int(slots.min()) <= int(slots.max()) < limit:
            raise PlanError(f"span copies: {name} slots in [0, {limit}) expected")
    table.check_positions(0, int(max(batch.source_positions.max(), batch.target_positions.max())))


def _share_memory(source: torch.Tensor, destination: torch.Tensor) -> bool:
    return source.untyped_storage().data_ptr() == destination.untyped_storage().data_ptr()
