"""Reads a prompt's K/V from a paged cache as the segments it is stored in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from semblend.integration.worker.port import KvAccess
from semblend.kv.layout import block_slots
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch
from semblend.kv.transfer import copy_spans


class SegmentReader:
    """Gathers many blocks of all layers at once, by one kernel where the cache has strides."""

    def __init__(self, access: KvAccess, segment_tokens: int) -> None:
        self._access = access
        self._segment_tokens = segment_tokens
        # Nothing moves: a single row is enough, as wide as a head to keep reads wide.
        pairs = max(1, access.head_dim // 2)
        self._rows = RotaryTable(cos=torch.ones(1, pairs), sin=torch.zeros(1, pairs)).to(
            access.device
        )

    def read(self, block_ids: tuple[int, ...], start: int, end: int) -> list[torch.Tensor]:
        """K/V of positions [start, end) cut into segments, the last shorter if necessary.

        Each is contiguous, [layers, parts, tokens, kv_heads, head_dim], on the cache's device.
        """
        access, size = self._access, self._segment_tokens
        edges = [*range(start, end, size), end]
        if access.pool is None:
            kv = access.read(block_ids, start, end)
            return [
                kv[:, :, low - start : high - start].contiguous() for low, high in pairwise(edges)
            ]
        cut = start + (end - start) // size * size
        whole = self._gathered(access.pool, block_ids, start, cut, size) if cut > start else []
        rest = self._gathered(access.pool, block_ids, cut, end, end - cut) if end > cut else []
        return [*whole, *rest]

    def _gathered(
        self, pool: PagedKv, block_ids: tuple[int, ...], start: int, end: int, size: int
    ) -> list[torch.Tensor]:
        """Segments of `size` tokens; [start, end) must be a whole number of them."""
        access, tokens = self._access, end - start
        shape = (tokens // size, access.layer_count, access.parts, size, *access.head_shape)
        segments = torch.empty(shape, dtype=access.dtype, device=access.device)
        nowhere = np.zeros(tokens, dtype=np.int64)
        batch = CopyBatch(
            sources=(pool,),
            source_numbers=nowhere,
            source_slots=block_slots(
                block_ids, start, end, block_size=access.block_size, blocks=access.blocks
            ),
            target_slots=np.arange(tokens),
            source_positions=nowhere,
            target_positions=nowhere,
            span_offsets=nowhere,
        )
        copy_spans(_by_segment(segments), batch, self._rows)
        return list(segments)


def _by_segment(kv: torch.Tensor) -> PagedKv:
    """[segments, layers, parts, tokens, kv_heads, head_dim] as a pool with segments as blocks."""
    layers = range(kv.shape[1])
    return PagedKv(
        keys=tuple(kv[:, layer, 0] for layer in layers),
        values=tuple(kv[:, layer, 1] for layer in layers if kv.shape[2] == 2),
    )
