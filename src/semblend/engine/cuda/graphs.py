"""Passes replayed from CUDA graphs: one replay instead of about three hundred launches.

A graph is recorded per pass size: rows, items, merges. Two passes of the same size differ only in
one buffer of numbers. Decoding uses a few batch sizes. Short prefills are padded with unused rows
(`pass_buffer.padded`). A size is recorded when it occurs for the second time and dropped after
sixteen others were used since, because recording takes as long as a few passes.

A prefill is recorded in pieces of several layers, the same groups that are copied together from the
host (`layerwise.layer_chunks`), so that copies can be awaited between pieces.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from semblend.engine.cache.pool import PagedPool
from semblend.engine.cuda.forward import FusedForward, LayerCall, Rows
from semblend.engine.cuda.pass_buffer import Layout, refill, to_device
from semblend.kv.layerwise import layer_chunks

logger = logging.getLogger("semblend.engine")

DECODE_SIZES = (1, 2, 4, 8, 16, 32, 64)
ROWS_STEP = 64
MOST_ROWS = 2048
"""Longer passes are not recorded, because computing takes longer than launching."""
MOST_GRAPHS = 16

_Key = tuple[int, ...]


def decode_size(requests: int) -> int | None:
    """The smallest recorded batch that holds this many requests."""
    return next((size for size in DECODE_SIZES if size >= requests), None)


def padded_rows(rows: int) -> int | None:
    """Rows of the graph for a pass of this size; None if it is not recorded."""
    return -(-rows // ROWS_STEP) * ROWS_STEP if rows <= MOST_ROWS else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recorded:
    pieces: tuple[tuple[range, torch.cuda.CUDAGraph], ...]
    """Layers and their graph. The first piece embeds, the last ends in logits."""
    rows: Rows
    logits: torch.Tensor

    def replay(self, before_layer: LayerCall | None) -> None:
        """Replay the pass whose numbers are in `rows`."""
        for layers, graph in self.pieces:
            if before_layer is not None:
                for layer in layers:
                    before_layer(layer)
            graph.replay()


class PassGraphs:
    """Recorded passes by pool and size, least recently used first. Used by one thread."""

    def __init__(self, forward: FusedForward) -> None:
        self._forward = forward
        self._by_pool: WeakKeyDictionary[PagedPool, OrderedDict[_Key, _Recorded | None]] = (
            WeakKeyDictionary()
        )
        self._memory: Any = None
        self._recording = True

    def run(
        self, pool: PagedPool, layout: Layout, *, before_layer: LayerCall | None = None
    ) -> torch.Tensor:
        """Logits [wanted, vocabulary] of a pass, valid until the next one."""
        all_recorded = self._by_pool.setdefault(pool, OrderedDict())
        key = layout.sizes
        known = key in all_recorded
        recorded = all_recorded.pop(key, None)
        if recorded is not None:
            refill(layout, recorded.rows)
            recorded.replay(before_layer)
            logits = recorded.logits
        else:
            rows = to_device(layout, pool, before_layer=before_layer)
            logits = self._forward(pool, rows)
            if known and self._recording:
                recorded = self._try_record(pool, replace(rows, before_layer=None))
        all_recorded[key] = recorded
        while len(all_recorded) > MOST_GRAPHS:
            all_recorded.popitem(last=False)
        return logits

    def _try_record(self, pool: PagedPool, rows: Rows) -> _Recorded | None:
        """Record a graph, or launch passes as usual if recording fails."""
        try:
            return self._record(pool, rows)
        except RuntimeError as error:
            logger.warning("recording a CUDA graph failed, so passes are launched (%s)", error)
            self._recording = False
            return None

    def _record(self, pool: PagedPool, rows: Rows) -> _Recorded:
        if self._memory is None:
            # Passes never overlap, so all graphs may use the same memory.
            self._memory = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(pool.data.device)
        forward = self._forward
        decodes = len(rows.wanted) == len(rows.tokens)
        chunks = [(0, forward.layers)] if decodes else layer_chunks(forward.layers)
        pieces, state = [], None
        for first, end in chunks:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                before = forward.embed(rows) if state is None else state
                state = forward.some_layers(pool, rows, before, first, end)
                if end == forward.layers:
                    logits = forward.head(state)
            pieces.append((range(first, end), graph))
        return _Recorded(pieces=tuple(pieces), rows=rows, logits=logits)
