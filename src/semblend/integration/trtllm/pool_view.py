"""K/V of single tokens in TensorRT-LLM's pool, whose blocks hold heads before tokens.

The pool is one tensor, [blocks, layers, 2, kv_heads * tokens * head_dim], and is seen
here as [blocks, layers, 2, kv_heads, tokens, head_dim]: K at index 0, rotated to its
position, V at index 1. A block id counts along the first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from semblend.core.errors import PlanError, UnsupportedModelError

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

    def write(self, block_ids: Sequence[int], kv: torch.Tensor) -> None:
        """Fill whole blocks with [layers, 2, blocks * tokens, kv_heads, head_dim]."""
        ids = self._ids(block_ids)
        if kv.shape[2] != len(block_ids) * self.block_size:
            raise PlanError(
                f"pool: {kv.shape[2]} tokens for {len(block_ids)} blocks of {self.block_size}"
            )
        layers, both, _, heads, head_dim = kv.shape
        split = kv.reshape(layers, both, len(block_ids), self.block_size, heads, head_dim)
        by_block = split.permute(2, 0, 1, 4, 3, 5)
        self.pool.index_copy_(0, ids, by_block.to(self.pool.dtype))

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        if not block_ids or min(block_ids) < 0 or max(block_ids) >= self.blocks:
            # -1 is "no page": as an index it would be somebody else's last block.
            raise PlanError(f"pool: block ids in [0, {self.blocks}) expected, got {block_ids}")
        return torch.tensor(block_ids, dtype=torch.int64, device=self.device)
