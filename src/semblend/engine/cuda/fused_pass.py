"""GPU passes: lays out runs as rows and tiles, in one transfer, and computes them.

Decodes and short prefills are replayed from graphs. Everything else is launched kernel by kernel,
which is fast enough when there is more to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semblend.engine.batch import ComputeRun, LayerHook
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cuda.forward import FusedForward, LayerCall
from semblend.engine.cuda.graphs import PassGraphs, decode_size, padded_rows
from semblend.engine.cuda.pass_buffer import Layout, padded, to_device
from semblend.engine.cuda.tiles import (
    ITEMS_EACH,
    IntArray,
    RowRun,
    TilePlan,
    TileShape,
    plan_tiles,
)
from semblend.kv.rotary_table import RotaryTable

LONG_SHAPE = TileShape(rows=128, keys=128, warps=8, stages=3)
SHORT_SHAPE = TileShape(rows=64, keys=64, warps=4, stages=3)
DECODE_SHAPE = TileShape(rows=16, keys=64, warps=4, stages=3)
"""The fastest shapes in docs/lab/gpu-prefill.md for items with many keys, few keys and one row."""
FLOAT32_SHAPE = TileShape(rows=64, keys=32, warps=4, stages=2)
"""Numbers are twice as wide and products take three steps, so tiles are small at any length."""
LONG_KEYS = 2048
"""Average keys per item from which the long shape is faster."""
SHORT_ITEMS_EACH = 2
"""Two programs of the short shape fit on a processor, so this many items make one wave."""


class CudaPasses:
    """Computes runs of one model on one device."""

    def __init__(self, model: Any, rotary: RotaryTable, *, groups: int, kv_heads: int) -> None:
        self._forward = FusedForward(model, rotary)
        self._dtype = next(model.parameters()).dtype
        self._groups = groups
        self._kv_heads = kv_heads
        self._processors = _processors(rotary.cos.device)
        self._graphs = PassGraphs(self._forward) if rotary.cos.is_cuda else None

    def compute(
        self,
        pool: PagedPool,
        runs: Sequence[ComputeRun],
        *,
        hook: LayerHook | None = None,
        before_layer: LayerCall | None = None,
        replay: bool = True,
    ) -> torch.Tensor:
        """Compute all runs in one pass and return the wanted logits, [wanted, vocabulary], fp32."""
        if hook is None and replay and self._graphs is not None:
            layout = self.recordable(pool, runs)
            if layout is not None:
                logits = self._graphs.run(pool, layout, before_layer=before_layer)
                return logits[: _wanted(runs)].float()
        layout = self.lay_out(pool, runs)
        rows = to_device(layout, pool, hook=hook, before_layer=before_layer)
        return self._forward(pool, rows).float()

    def recordable(self, pool: PagedPool, runs: Sequence[ComputeRun]) -> Layout | None:
        """The pass in one of the recorded sizes, or None.

        Decode batches are filled up with their first request. Its K/V is then written several times
        with the same values, and the extra logits are ignored.
        """
        if all(len(run.tokens) == run.logit_rows == 1 for run in runs):
            size = decode_size(len(runs))
            if size is None:
                return None
            filled = [*runs, *[runs[0]] * (size - len(runs))]
            layout = self.lay_out(pool, filled, splits=self._decode_splits(size))
            return layout if layout.pages is None else None
        rows = padded_rows(sum(len(run.tokens) for run in runs))
        if rows is None:
            return None
        layout = self.lay_out(pool, runs)
        if layout.pages is not None or len(layout.plans) > 1:
            return None
        shape = layout.plans[0].shape
        tiles = -(-rows // shape.tokens(self._groups))
        split = _items_each(shape) * self._processors // self._kv_heads
        return padded(layout, rows, 2 * tiles + split)

    def lay_out(
        self, pool: PagedPool, runs: Sequence[ComputeRun], *, splits: int | None = None
    ) -> Layout:
        """Rows, slots and tiles of a pass. Runs of one request stay together, in order."""
        requests = _by_request(runs)
        bases, pages = _bases(requests, pool.page_size)
        positions = np.concatenate([np.arange(run.start, run.end) for run in runs])
        slots: list[npt.NDArray[np.int64]] = []
        wanted: list[int] = []
        few: list[RowRun] = []
        many: list[RowRun] = []
        decode_shape = self._decode_shape
        row = 0
        for parts, base in zip(requests, bases, strict=True):
            first, breaks = row, []
            for run in parts:
                breaks.append(row - first)
                row += len(run.tokens)
                wanted.extend(range(row - run.logit_rows, row))
            mine = positions[first:row]
            rows = RowRun(row=first, positions=mine, base=base, breaks=np.array(breaks))
            slots.append(parts[0].table.slots_of(mine))
            small = len(mine) * self._groups <= decode_shape.rows
            (few if small else many).append(rows)
        plans = [self._prefill_plan(many)] if many else []
        if few:
            plans.append(self._plan(few, decode_shape, splits))
        return Layout(
            tokens=np.concatenate([run.tokens for run in runs]).astype(np.int32),
            positions=positions.astype(np.int32),
            slots=np.concatenate(slots).astype(np.int32),
            wanted=np.array(wanted, dtype=np.int32),
            pages=pages,
            plans=tuple(plans),
        )

    def _prefill_plan(self, runs: Sequence[RowRun]) -> TilePlan:
        if self._dtype == torch.float32:
            return self._plan(runs, FLOAT32_SHAPE, None)
        keys = sum(float(run.positions.sum()) + len(run.positions) for run in runs)
        tiles = sum(len(run.positions) for run in runs) / LONG_SHAPE.tokens(self._groups)
        items = max(tiles, ITEMS_EACH * self._processors / self._kv_heads)
        keys_each = keys / LONG_SHAPE.tokens(self._groups) / items
        shape = LONG_SHAPE if keys_each >= LONG_KEYS else SHORT_SHAPE
        return self._plan(runs, shape, None)

    def _plan(self, runs: Sequence[RowRun], shape: TileShape, splits: int | None) -> TilePlan:
        return plan_tiles(
            runs,
            shape,
            groups=self._groups,
            kv_heads=self._kv_heads,
            processors=self._processors,
            splits=splits,
            items_each=_items_each(shape),
        )

    @property
    def _decode_shape(self) -> TileShape:
        rows = max(DECODE_SHAPE.rows, 1 << (self._groups - 1).bit_length())
        return TileShape(
            rows=rows,
            keys=DECODE_SHAPE.keys,
            warps=DECODE_SHAPE.warps,
            stages=DECODE_SHAPE.stages,
        )

    def _decode_splits(self, requests: int) -> int:
        """Items per request that fill the device at any length, so that graphs keep their size."""
        return max(1, min(64, -(-2 * self._processors // (requests * self._kv_heads))))


def _items_each(shape: TileShape) -> int:
    return SHORT_ITEMS_EACH if shape == SHORT_SHAPE else ITEMS_EACH


def _wanted(runs: Sequence[ComputeRun]) -> int:
    return sum(run.logit_rows for run in runs)


def _by_request(runs: Sequence[ComputeRun]) -> list[list[ComputeRun]]:
    requests: list[list[ComputeRun]] = []
    for run in runs:
        last = requests[-1][-1] if requests else None
        if last is not None and run.table is last.table and run.start >= last.end:
            requests[-1].append(run)
        else:
            requests.append([run])
    return requests


def _bases(
    requests: Sequence[Sequence[ComputeRun]], page_size: int
) -> tuple[list[int], IntArray | None]:
    """Where each request's keys start, and all page numbers unless all pages are contiguous."""
    tables: list[tuple[PageTable, int]] = [(runs[0].table, runs[-1].end) for runs in requests]
    used = [table.pages[: -(-end // page_size)] for table, end in tables]
    if all(bool((pages[1:] - pages[:-1] == 1).all()) for pages in used):
        return [int(pages[0]) * page_size for pages in used], None
    sizes = [len(pages) for pages in used]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return starts, np.concatenate(used).astype(np.int32)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
