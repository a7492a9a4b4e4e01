"""Passes on a GPU: runs laid out as rows and tiles, in one transfer, and computed.

A pass that only decodes is replayed from a graph of its size; everything else is
launched kernel by kernel, which is fast enough where there is more to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from semblend.engine.batch import ComputeRun, LayerHook
from semblend.engine.cuda_batch import Layout, to_device
from semblend.engine.cuda_forward import FusedForward, LayerCall
from semblend.engine.graphs import DecodeGraphs
from semblend.engine.pages import PageTable
from semblend.engine.pool import PagedPool
from semblend.engine.tiles import IntArray, RowRun, TileShape, plan_tiles
from semblend.kv.rotary_table import RotaryTable

PREFILL_SHAPE = TileShape(rows=128, keys=128, warps=8, stages=2)
DECODE_SHAPE = TileShape(rows=16, keys=64, warps=4, stages=3)
"""Chosen by benchmarks/gpu/prefill.py; docs/lab/gpu-prefill.md has the others."""


class CudaPasses:
    """Computes runs of one model on one device."""

    def __init__(self, model: Any, rotary: RotaryTable, *, groups: int, kv_heads: int) -> None:
        self._forward = FusedForward(model, rotary)
        self._groups = groups
        self._kv_heads = kv_heads
        self._processors = _processors(rotary.cos.device)
        self._graphs = DecodeGraphs(self._forward) if rotary.cos.is_cuda else None

    def compute(
        self,
        pool: PagedPool,
        runs: Sequence[ComputeRun],
        *,
        hook: LayerHook | None = None,
        before_layer: LayerCall | None = None,
    ) -> torch.Tensor:
        """Compute all runs in one pass; returns the wanted logits, [wanted, vocabulary], fp32."""
        decodes = all(len(run.tokens) == 1 and run.wants_logits for run in runs)
        if decodes and hook is None and before_layer is None and self._graphs is not None:
            bucket = self._graphs.bucket(len(runs))
            if bucket is not None:
                padded = [*runs, *[runs[0]] * (bucket - len(runs))]
                layout = self.lay_out(pool, padded, splits=self._decode_splits(bucket))
                if layout.pages is None:
                    return self._graphs.replay(pool, layout)[: len(runs)].float()
        layout = self.lay_out(pool, runs)
        rows = to_device(layout, pool, hook=hook, before_layer=before_layer)
        return self._forward(pool, rows).float()

    def lay_out(
        self, pool: PagedPool, runs: Sequence[ComputeRun], *, splits: int | None = None
    ) -> Layout:
        """Rows, slots and tiles of a pass. Runs of one request stand together, in order."""
        requests = _by_request(runs)
        bases, pages = _bases(requests, pool.page_size)
        few: list[RowRun] = []
        many: list[RowRun] = []
        row = 0
        for parts, base in zip(requests, bases, strict=True):
            lengths = [len(run.tokens) for run in parts]
            rows = RowRun(
                row=row,
                positions=np.concatenate([np.arange(run.start, run.end) for run in parts]),
                base=base,
                breaks=np.cumsum([0, *lengths[:-1]]),
            )
            row += len(rows.positions)
            small = len(rows.positions) * self._groups <= self._decode_shape.rows
            (few if small else many).append(rows)
        plans = tuple(
            plan_tiles(
                chosen,
                shape,
                groups=self._groups,
                kv_heads=self._kv_heads,
                processors=self._processors,
                splits=splits,
            )
            for chosen, shape in ((many, PREFILL_SHAPE), (few, self._decode_shape))
            if chosen
        )
        ends = np.cumsum([len(run.tokens) for run in runs])
        return Layout(
            tokens=np.concatenate([run.tokens for run in runs]).astype(np.int32),
            positions=np.concatenate([np.arange(run.start, run.end) for run in runs]).astype(
                np.int32
            ),
            slots=np.concatenate([run.table.slots(run.start, run.end) for run in runs]).astype(
                np.int32
            ),
            wanted=np.array(
                [end - 1 for run, end in zip(runs, ends, strict=True) if run.wants_logits],
                dtype=np.int32,
            ),
            pages=pages,
            plans=plans,
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
        """Items of each request that fill the device, whatever its length: graphs do not grow."""
        return max(1, min(64, -(-2 * self._processors // (requests * self._kv_heads))))


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
    """Where each request's keys begin, and all page numbers unless all pages lie side by side."""
    tables: list[tuple[PageTable, int]] = [(runs[0].table, runs[-1].end) for runs in requests]
    used = [table.pages[: -(-end // page_size)] for table, end in tables]
    if all(bool((np.diff(pages) == 1).all()) for pages in used):
        return [int(pages[0]) * page_size for pages in used], None
    sizes = [len(pages) for pages in used]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return starts, np.concatenate(used).astype(np.int32)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
