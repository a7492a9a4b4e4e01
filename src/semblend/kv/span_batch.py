"""What to copy: spans as callers state them, and validated flat batches for kernels.

Everything a kernel takes on trust (slots in range, written once, not read and written in one call,
positions with rows) is checked here, on the host, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from semblend.core.errors import PlanError, UnsupportedRotaryError
from semblend.kv.layer_rotary import Rotary
from semblend.kv.layout import SlotArray, by_slot
from semblend.kv.numbers import is_fp8
from semblend.kv.paged_kv import PagedKv, TokenWriter

Source = torch.Tensor | PagedKv
"""K/V to copy from: one of our segments or pools, or any engine's pool."""
Destination = PagedKv | TokenWriter
"""K/V to copy to: memory with known strides, or what only an engine can write."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanCopy:
    """One span to copy: rows of a source, target slots, and the positions to move between."""

    source: Source
    """A segment [layers, parts, tokens, kv_heads, head_dim], or a pool."""
    source_slots: SlotArray
    """Rows of the source, shape [tokens]; on the host, where plans are made."""
    target_slots: SlotArray
    """Slots of the destination pool, shape [tokens]."""
    source_start: int
    """Position at which the first token's K was computed."""
    target_start: int
    """Position it moves to."""

    def __post_init__(self) -> None:
        for name in ("source_slots", "target_slots"):
            slots = getattr(self, name)
            if slots.dtype != np.int64 or not slots.flags.c_contiguous:
                object.__setattr__(self, name, np.ascontiguousarray(slots, dtype=np.int64))
        if self.source_slots.ndim != 1 or self.source_slots.shape != self.target_slots.shape:
            raise PlanError(
                f"span copy: expected as many source as target slots, got "
                f"{self.source_slots.shape} and {self.target_slots.shape}"
            )
        if self.source_start < 0 or self.target_start < 0:
            raise PlanError(
                f"span copy: expected starts of at least 0, got source_start={self.source_start} "
                f"and target_start={self.target_start}"
            )

    def __len__(self) -> int:
        return int(self.source_slots.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyBatch:
    """All tokens to copy, flat: one entry per token in every array."""

    sources: tuple[Source, ...]
    """Tensors [layers, parts, slots, kv_heads, head_dim] whose slots differ, or one `PagedKv`."""
    source_numbers: SlotArray
    """The source each token is read from."""
    source_slots: SlotArray
    target_slots: SlotArray
    source_positions: SlotArray
    target_positions: SlotArray
    span_offsets: SlotArray
    """Offset of each token in its span, from which depth-shift steps count."""
    lookup: torch.Tensor | None = None
    """If set, both kinds of slots are places in it; see `copy_spans`."""

    def __len__(self) -> int:
        return int(self.source_slots.size)

    def looked_up(self) -> CopyBatch:
        """The batch with slots in place of places; waits for the device that has them."""
        if self.lookup is None:
            return self
        slots = self.lookup.cpu().numpy()
        for places in (self.source_slots, self.target_slots):
            _check_places(places, len(slots))
        return replace(
            self,
            source_slots=slots[self.source_slots],
            target_slots=slots[self.target_slots],
            lookup=None,
        )

    def part(self, which: npt.NDArray[np.bool_] | slice) -> CopyBatch:
        return replace(
            self,
            source_numbers=self.source_numbers[which],
            source_slots=self.source_slots[which],
            target_slots=self.target_slots[which],
            source_positions=self.source_positions[which],
            target_positions=self.target_positions[which],
            span_offsets=self.span_offsets[which],
        )

    def of_sources(self, wanted: Sequence[bool]) -> CopyBatch:
        """The tokens of some sources, with one flag per source."""
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
    """Collects runs of tokens from any number of sources into one batch.

    A long prompt has hundreds of runs and its kernel is waiting, so no array is made per run.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._sources: list[Source] = []
        self._runs: list[tuple[int, int, int, int, int, int]] = []

    def add(
        self,
        source: Source,
        *,
        row: int,
        source_start: int,
        target_start: int,
        tokens: int,
        span_offset: int = 0,
    ) -> None:
        """Add rows [row, row + tokens) of a source, at least one. Positions are the first row's.

        `span_offset` is the run's offset in its span, if a span is split into pieces.
        """
        number = self._numbers.setdefault(id(source), len(self._sources))
        if number == len(self._sources):
            self._sources.append(source)
        self._runs.append((number, row, source_start, target_start, span_offset, tokens))

    def batch(self, target_slots: SlotArray) -> CopyBatch:
        """All runs as a batch, not yet checked against a pool.

        Parameters
        ----------
        target_slots
            Slots of the prompt's positions from 0 on, shape [positions].

        Raises
        ------
        PlanError
            If a run starts before 0, or reaches a position without a slot.
        """
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 6).T
        if (least := int(runs.min(initial=0))) < 0:
            raise PlanError(f"copy runs: expected rows and positions of at least 0, got {least}")
        starts, lengths = runs[:5], runs[5]
        if (end := int((starts[3] + lengths).max(initial=0))) > len(target_slots):
            raise PlanError(f"copy runs: expected {end} target slots, got {len(target_slots)}")
        numbers, source_slots, source_positions, target_positions, offsets = _along(starts, lengths)
        return CopyBatch(
            sources=tuple(map(_as_slots, self._sources)),
            source_numbers=numbers,
            source_slots=source_slots,
            target_slots=target_slots[target_positions],
            source_positions=source_positions,
            target_positions=target_positions,
            span_offsets=offsets,
        )


def flat_batch(
    destination: Destination, copies: Sequence[SpanCopy] | CopyBatch, table: Rotary
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
    if len(batch.sources) > 1 and any(isinstance(s, PagedKv) for s in batch.sources):
        raise PlanError("span copies: an engine's pool cannot be combined with other sources")
    # Segments of one donor have the same shape, so check each shape once.
    for shape in dict.fromkeys(map(_shape_of, batch.sources)):
        _check_source(shape, destination, table)
    _check_slots(batch, destination)
    if (
        is_fp8(destination.dtype)
        and destination.clipped is None
        and bool((batch.source_positions != batch.target_positions).any())
    ):
        raise PlanError("span copies: fp8 moves only into a pool that counts what is clipped")
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
        [(numbers[id(c.source)], c.source_start, c.target_start, 0, len(c)) for c in spans],
        dtype=np.int64,
    ).T
    source_numbers, source_positions, target_positions, offsets = _along(runs[:4], runs[4])
    return CopyBatch(
        sources=tuple(map(_as_slots, sources.values())),
        source_numbers=source_numbers,
        source_slots=np.concatenate([copy.source_slots for copy in spans]),
        target_slots=np.concatenate([copy.target_slots for copy in spans]),
        source_positions=source_positions,
        target_positions=target_positions,
        span_offsets=offsets,
    )


def _as_slots(source: Source) -> Source:
    return source if isinstance(source, PagedKv) else by_slot(source)


def _along(starts: SlotArray, lengths: SlotArray) -> SlotArray:
    """Expand the starts of runs, [kinds, runs], to their tokens, [kinds, tokens].

    The first kind, the source number, is constant along a run; the others count up.
    """
    shifted = starts.copy()
    shifted[1:] -= lengths.cumsum() - lengths
    along: SlotArray = shifted.repeat(lengths, axis=1)
    along[1:] += np.arange(along.shape[1])
    return along


class _Shape(NamedTuple):
    """What a source and a destination must agree on."""

    layers: int
    parts: int
    heads: int
    head_dim: int
    dtype: torch.dtype


def _shape_of(kv: Source | TokenWriter) -> _Shape:
    if isinstance(kv, torch.Tensor):
        layers, parts, _, heads, dim = kv.shape
        return _Shape(layers, parts, heads, dim, kv.dtype)
    return _Shape(kv.layer_count, kv.parts, *kv.head_shape, kv.dtype)


def _check_source(source: _Shape, destination: Destination, table: Rotary) -> None:
    if source != (wanted := _shape_of(destination)):
        raise PlanError(f"span copies: source {source} does not fit a pool with {wanted}")
    try:
        table.check_width(source.head_dim)
    except UnsupportedRotaryError as error:
        raise PlanError(f"span copies: {error}") from error


def _slots_of(source: Source) -> int:
    return source.slot_count if isinstance(source, PagedKv) else source.shape[2]


def _check_places(places: SlotArray, count: int) -> None:
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < count:
        raise PlanError(f"span copies: expected places in [0, {count}) of the slots")


def _check_slots(batch: CopyBatch, destination: Destination) -> None:
    if batch.lookup is not None:
        # The slots themselves are on the device: whoever lists them answers for them.
        _check_places(batch.source_slots, len(batch.lookup))
        _check_places(batch.target_slots, len(batch.lookup))
        low, high = int(batch.target_slots.min()), int(batch.target_slots.max())
        if not _all_different(batch.target_slots, low, high):
            raise PlanError("span copies: a target slot is written twice")
        if bool(np.isin(batch.source_slots, batch.target_slots).any()):
            raise PlanError("span copies: a slot is read and written in one call")
        return
    rows = np.array([_slots_of(source) for source in batch.sources]).take(batch.source_numbers)
    if int(batch.source_slots.min()) < 0 or bool((batch.source_slots >= rows).any()):
        raise PlanError(f"span copies: expected source slots in [0, {int(rows.min())})")
    slots = destination.slot_count
    low, high = int(batch.target_slots.min()), int(batch.target_slots.max())
    if not 0 <= low <= high < slots:
        raise PlanError(f"span copies: expected target slots in [0, {slots})")
    if not _all_different(batch.target_slots, low, high):
        raise PlanError("span copies: a target slot is written twice")
    if not isinstance(destination, PagedKv):
        return  # its memory is unknown, and nothing of ours reads from it
    for number, source in enumerate(batch.sources):
        first = source.keys[0] if isinstance(source, PagedKv) else source
        if first.device != destination.device or not destination.overlaps(first.data_ptr()):
            continue
        # A view of part of the pool would count its slots from elsewhere.
        same = (
            destination.lies_as(source)
            if isinstance(source, PagedKv)
            else destination.stack is not None
            and first.data_ptr() == destination.keys[0].data_ptr()
        )
        read = batch.source_slots[batch.source_numbers == number]
        if not same or bool(np.isin(read, batch.target_slots).any()):
            raise PlanError("span copies: a slot is read and written in one call")


def _all_different(slots: SlotArray, low: int, high: int) -> bool:
    """Whether all slots in [low, high] are distinct. Those of one request mostly ascend."""
    if bool((slots[1:] > slots[:-1]).all()):
        return True
    seen = np.zeros(high + 1 - low, dtype=bool)
    seen[slots - low] = True
    return int(np.count_nonzero(seen)) == slots.size
