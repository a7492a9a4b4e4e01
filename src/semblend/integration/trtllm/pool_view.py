"""K/V of single tokens in TensorRT-LLM's pool, whose blocks hold heads before tokens.

The pool is one tensor, [blocks, layers, 2, kv_heads * tokens * head_dim], and is seen
here as [blocks, layers, 2, kv_heads, tokens, head_dim]: K at index 0, rotated to its
position, V at index 1. A block id counts along the first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.kv.layout import SlotArray
from semblend.kv.paged_kv import PagedKv

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class PoolView:
    """Token-wise access to one rank's pool. Does not own the memory."""

    def __init__(self, pool: torch.Tensor, *, block_size: int, head_dim: int) -> None:
        """Check the shape.

        Raises
        ------
        UnsupportedModelError
            Naming what is not as this adapter knows it.
        """
        if pool.ndim not in (4, 6):
            raise UnsupportedModelError(f"K/V pool of shape {tuple(pool.shape)}")
        blocks, layers, factor = (int(size) for size in pool.shape[:3])
        if factor != 2:
            raise UnsupportedModelError(f"K/V pool with {factor} instead of 2 (K and V) a layer")
        if pool.dtype not in _DTYPES:
            raise UnsupportedModelError(f"K/V pool of type {pool.dtype}")
        inner = int(pool[0, 0, 0].numel())
        heads, rest = divmod(inner, block_size * head_dim)
        if rest or not heads:
            raise UnsupportedModelError(
                f"K/V pool: {inner} numbers a block and layer are not whole heads of "
                f"{block_size} x {head_dim}"
            )
        shape = (blocks, layers, 2, heads, block_size, head_dim)
        if pool.ndim == 6 and tuple(pool.shape) != shape:
            raise UnsupportedModelError(f"K/V pool {tuple(pool.shape)}: {shape} expected")
        self.pool = pool.view(shape)
        self.block_size = block_size
        tokens_first = self.pool.transpose(3, 4)
        self.paged = PagedKv(
            keys=tuple(tokens_first[:, layer, 0] for layer in range(layers)),
            values=tuple(tokens_first[:, layer, 1] for layer in range(layers)),
        )
        """The pool as spans are copied into it."""

    @property
    def blocks(self) -> int:
        """Blocks in the pool."""
        return int(self.pool.shape[0])

    @property
    def layers(self) -> int:
        """Layers in the pool."""
        return int(self.pool.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.pool.device

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on all layers."""
        return int(self.pool[0].numel()) * int(self.pool.dtype.itemsize)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V on all layers."""
        return self.block_bytes // self.block_size

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        """K/V of positions [start, end): [layers, 2, tokens, kv_heads, head_dim], a copy."""
        first, last = start // self.block_size, -(-end // self.block_size)
        gathered = self.pool.index_select(0, self._ids(block_ids[first:last]))
        # [blocks, layers, 2, heads, tokens, dim] to [layers, 2, blocks, tokens, heads, dim]
        tokens = gathered.permute(1, 2, 0, 4, 3, 5).flatten(2, 3)
        skip = start - first * self.block_size
        return tokens[:, :, skip : skip + end - start].contiguous()

    def slots(self, block_ids: Sequence[int], start: int, end: int) -> SlotArray:
        """Slots of positions [0, end) of a request with these blocks; -1 before `start`.

        Raises
        ------
        PlanError
            If a position has no block, or a block is not in the pool.
        """
        first, last = start // self.block_size, -(-end // self.block_size)
        table = block_ids[first:last]
        self._check(table)
        if len(table) < last - first:
            raise PlanError(f"pool: {last} blocks for {end} tokens expected, got {block_ids}")
        slots = np.full(end, -1, dtype=np.int64)
        positions = np.arange(start, end, dtype=np.int64)
        blocks = np.asarray(table, dtype=np.int64)[positions // self.block_size - first]
        slots[start:] = blocks * self.block_size + positions % self.block_size
        return slots

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        self._check(block_ids)
        return torch.tensor(block_ids, dtype=torch.int64, device=self.device)

    def _check(self, block_ids: Sequence[int]) -> None:
        if not block_ids or min(block_ids) < 0 or max(block_ids) >= self.blocks:
            # -1 is "no page": as an index it would be somebody else's last block.
            raise PlanError(f"pool: block ids in [0, {self.blocks}) expected, got {block_ids}")
