"""K/V of single tokens in TensorRT-LLM's pool, whose blocks hold heads before tokens.

The pool is one tensor, [blocks, layers, 2, kv_heads * tokens * head_dim], and is seen
here as [blocks, layers, 2, kv_heads, tokens, head_dim]: K at index 0, rotated to its
position, V at index 1. A block id counts along the first dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.integration.worker.port import KvAccess
from semblend.kv.paged_kv import PagedKv

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class PoolView(KvAccess):
    """Token-wise access to one rank's pool (`KvAccess`). Does not own the memory."""

    def __init__(self, tensor: torch.Tensor, *, block_size: int, head_dim: int) -> None:
        """Check the shape.

        Raises
        ------
        UnsupportedModelError
            Naming what is not as this adapter knows it.
        """
        if tensor.ndim not in (4, 6):
            raise UnsupportedModelError(f"K/V pool of shape {tuple(tensor.shape)}")
        self.blocks, self.layer_count, factor = (int(size) for size in tensor.shape[:3])
        if factor != 2:
            raise UnsupportedModelError(f"K/V pool with {factor} instead of 2 (K and V) a layer")
        if tensor.dtype not in _DTYPES:
            raise UnsupportedModelError(f"K/V pool of type {tensor.dtype}")
        inner = int(tensor[0, 0, 0].numel())
        self.kv_heads, rest = divmod(inner, block_size * head_dim)
        if rest or not self.kv_heads:
            raise UnsupportedModelError(
                f"K/V pool: {inner} numbers a block and layer are not whole heads of "
                f"{block_size} x {head_dim}"
            )
        shape = (self.blocks, self.layer_count, 2, self.kv_heads, block_size, head_dim)
        if tensor.ndim == 6 and tuple(tensor.shape) != shape:
            raise UnsupportedModelError(f"K/V pool {tuple(tensor.shape)}: {shape} expected")
        self.tensor = tensor.view(shape)
        self.block_size, self.head_dim = block_size, head_dim
        self.dtype, self.device = tensor.dtype, tensor.device
        self.scratch_block = self.blocks - 1
        tokens_first = self.tensor.transpose(3, 4)
        self.pool = PagedKv(
            keys=tuple(tokens_first[:, layer, 0] for layer in range(self.layer_count)),
            values=tuple(tokens_first[:, layer, 1] for layer in range(self.layer_count)),
        )
        """The pool as spans are copied into it; None once its strides were found not to hold."""

    @property
    def destination(self) -> PagedKv:
        """Where spans are copied to.

        Raises
        ------
        UnsupportedModelError
            If what is copied there does not come back.
        """
        if self.pool is None:
            raise UnsupportedModelError("K/V pool: what is copied into it does not come back")
        return self.pool

    @contextmanager
    def scratch_kept(self) -> Iterator[None]:
        """Whatever is written into the scratch block meanwhile, it is as before afterwards."""
        kept = self.tensor[self.scratch_block].clone()
        try:
            yield
        finally:
            self.tensor[self.scratch_block] = kept

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        """K/V of positions [start, end): [layers, 2, tokens, kv_heads, head_dim], a copy."""
        first, last = start // self.block_size, -(-end // self.block_size)
        table = block_ids[first:last]
        if not table or min(table) < 0 or max(table) >= self.blocks:
            # -1 is "no page": as an index it would be somebody else's last block.
            raise PlanError(f"pool: block ids in [0, {self.blocks}) expected, got {table}")
        ids = torch.tensor(table, dtype=torch.int64, device=self.device)
        # [blocks, layers, 2, heads, tokens, dim] to [layers, 2, blocks, tokens, heads, dim]
        tokens = self.tensor.index_select(0, ids).permute(1, 2, 0, 4, 3, 5).flatten(2, 3)
        skip = start - first * self.block_size
        return tokens[:, :, skip : skip + end - start].contiguous()
