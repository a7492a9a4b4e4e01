"""Decoding from CUDA graphs: one replay instead of some two hundred launches a token.

A graph is recorded once for each of a few batch sizes; a batch in between is filled
up with copies of its first request, whose K/V is then written more than once with
the same numbers. What changes between two tokens is one buffer of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semblend.engine.cuda_batch import Layout, to_device
from semblend.engine.cuda_forward import FusedForward, Rows
from semblend.engine.pool import PagedPool

BUCKETS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    rows: Rows
    logits: torch.Tensor


class DecodeGraphs:
    """Graphs by pool and batch size, recorded on first use. Owned by one thread."""

    def __init__(self, forward: FusedForward) -> None:
        self._forward = forward
        self._recorded: dict[tuple[int, int], _Recorded] = {}

    @staticmethod
    def bucket(requests: int) -> int | None:
        """The smallest recorded size that holds so many requests."""
        return next((size for size in BUCKETS if size >= requests), None)

    def replay(self, pool: PagedPool, layout: Layout) -> torch.Tensor:
        """Logits [rows, vocabulary] of a pass of one row a request; good until the next replay."""
        key = (pool.data.data_ptr(), len(layout))
        recorded = self._recorded.get(key)
        if recorded is None:
            recorded = self._recorded[key] = self._record(pool, layout)
        else:
            to_device(layout, pool, into=recorded.rows.buffer)
        recorded.graph.replay()
        return recorded.logits

    def _record(self, pool: PagedPool, layout: Layout) -> _Recorded:
        rows = to_device(layout, pool)
        # Compiles kernels and fills workspaces, which a recording must not do.
        side = torch.cuda.Stream(pool.data.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._forward(pool, rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = self._forward(pool, rows)
        return _Recorded(graph=graph, rows=rows, logits=logits)
