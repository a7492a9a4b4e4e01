"""Passes from CUDA graphs: one replay instead of some three hundred launches.

A graph is recorded for the sizes of a pass: rows, items, merges. What changes between
two passes of the same sizes is one buffer of numbers. Decoding comes in a few batch
sizes; short prefills are padded with rows that belong to nobody (`cuda_batch.padded`).
A size is recorded when it is seen for the second time, and forgotten when sixteen
others were used since: recording takes as long as a few passes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from semblend.engine.cuda_batch import Layout, to_device
from semblend.engine.cuda_forward import FusedForward, Rows
from semblend.engine.pool import PagedPool

logger = logging.getLogger("semblend.engine")

DECODE_SIZES = (1, 2, 4, 8, 16, 32, 64)
ROWS_STEP = 64
MOST_ROWS = 1024
"""Longer passes compute for longer than their launches take, and are not recorded."""
MOST_GRAPHS = 16

_Key = tuple[int, ...]


def decode_size(requests: int) -> int | None:
    """The smallest recorded batch that holds so many requests."""
    return next((size for size in DECODE_SIZES if size >= requests), None)


def padded_rows(rows: int) -> int | None:
    """Rows of the graph that computes so many; None for a pass that is not recorded."""
    return -(-rows // ROWS_STEP) * ROWS_STEP if rows <= MOST_ROWS else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    rows: Rows
    logits: torch.Tensor


class PassGraphs:
    """Recorded passes by pool and size, least recently used first. Owned by one thread."""

    def __init__(self, forward: FusedForward) -> None:
        self._forward = forward
        self._by_pool: WeakKeyDictionary[PagedPool, OrderedDict[_Key, _Recorded | None]] = (
            WeakKeyDictionary()
        )
        self._memory: Any = None
        self._recording = True

    def run(self, pool: PagedPool, layout: Layout) -> torch.Tensor:
        """Logits [wanted, vocabulary] of a pass; good until the next one."""
        all_recorded = self._by_pool.setdefault(pool, OrderedDict())
        key = layout.sizes
        known = key in all_recorded
        recorded = all_recorded.pop(key, None)
        if recorded is not None:
            to_device(layout, pool, into=recorded.rows.buffer)
            recorded.graph.replay()
            logits = recorded.logits
        else:
            rows = to_device(layout, pool)
            logits = self._forward(pool, rows)
            if known and self._recording:
                recorded = self._try_record(pool, rows)
        all_recorded[key] = recorded
        while len(all_recorded) > MOST_GRAPHS:
            all_recorded.popitem(last=False)
        return logits

    def _try_record(self, pool: PagedPool, rows: Rows) -> _Recorded | None:
        """A graph is a shortcut: where it cannot be had, passes are launched as ever."""
        try:
            return self._record(pool, rows)
        except RuntimeError as error:
            logger.warning("passes are launched, not replayed: recording failed (%s)", error)
            self._recording = False
            return None

    def _record(self, pool: PagedPool, rows: Rows) -> _Recorded:
        if self._memory is None:
            # Passes never overlap, so that all graphs may compute in the same memory.
            self._memory = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(pool.data.device)
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = self._forward(pool, rows)
        return _Recorded(graph=graph, rows=rows, logits=logits)
