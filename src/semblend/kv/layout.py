"""Where a token's K/V is: the paged pool and the contiguous segment.

A pool is one tensor [layers, 2, pages, page_size, kv_heads, head_dim], K at index 0 and V at index
1. A token's *slot* is page * page_size + offset. A segment is one tensor [layers, 2, tokens,
kv_heads, head_dim]. Indexed by slots, a pool has the shape of a segment, so all copying is between
two tensors of that shape.

Multi-head latent attention (MLA) has no V of its own: K and V are both made from one row [latent,
k_pe] per token. There the second dimension, the *parts*, is 1: the rows lie where K lies, with one
head, and only their last numbers rotate (`RotaryTable.offset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from semblend.core.errors import PlanError

SlotArray = npt.NDArray[np.int64]
PARTS = (1, 2)
"""How many parts K/V may have: K and V, or rows that both are made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayout:
    layers: int
    pages: int
    page_size: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise PlanError(f"paged layout: expected sizes of at least 1, got {self}")

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        return (self.layers, 2, self.pages, self.page_size, self.kv_heads, self.head_dim)

    @property
    def slots(self) -> int:
        """Number of tokens the pool holds."""
        return self.pages * self.page_size

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one token's K and V on all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * dtype.itemsize

    def pool_bytes(self, dtype: torch.dtype) -> int:
        return self.slots * self.token_bytes(dtype)

    def allocate(self, *, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """A pool of zeros: a page that is read before it is written must not contain NaN."""
        return torch.zeros(self.shape, dtype=dtype, device=device)

    def token_slots(
        self, block_table: Sequence[int] | SlotArray, start: int, end: int
    ) -> SlotArray:
        """Slots of the tokens at positions [start, end) of a request with these pages."""
        return block_slots(block_table, start, end, block_size=self.page_size, blocks=self.pages)


def block_slots(
    block_ids: Sequence[int] | SlotArray, start: int, end: int, *, block_size: int, blocks: int
) -> SlotArray:
    """Slots of positions [start, end) of a request with these blocks, of the `blocks` of a pool.

    Raises
    ------
    PlanError
        If a position has no block, or its block is not in the pool.
    """
    first, last = start // block_size, -(-end // block_size)
    table = np.asarray(block_ids[first:last], dtype=np.int64)
    if not 0 <= start <= end or table.size < last - first:
        raise PlanError(
            f"K/V pool: tokens [{start}, {end}) of a request with {len(block_ids)} blocks of "
            f"{block_size}"
        )
    if table.size and not 0 <= int(table.min()) <= int(table.max()) < blocks:
        # -1 is "no block": as an index it would be somebody else's last one.
        raise PlanError(f"K/V pool: block ids in [0, {blocks}) expected, got {table.tolist()}")
    # Block by block: dividing every position takes longer than everything else.
    slots = (table[:, None] * block_size + np.arange(block_size)).reshape(-1)
    return slots[start - first * block_size : end - first * block_size]


def by_slot(kv: torch.Tensor) -> torch.Tensor:
    """A pool or a segment as [layers, parts, slots, kv_heads, head_dim], sharing its memory.

    Raises
    ------
    PlanError
        If the tensor has neither shape, or its tokens are not contiguous.
    """
    if kv.ndim not in (5, 6) or kv.shape[1] not in PARTS:
        raise PlanError(
            f"K/V: expected a pool [layers, parts, pages, page_size, kv_heads, head_dim] or a "
            f"segment [layers, parts, tokens, kv_heads, head_dim] of one or two parts, got "
            f"{tuple(kv.shape)}"
        )
    if kv.is_contiguous():  # as pools are, and the segments of a long donor
        return kv if kv.ndim == 5 else kv.flatten(2, 3)
    heads, dim = kv.shape[-2:]
    expected = [dim * heads, dim, 1]
    if kv.ndim == 6:
        expected.insert(0, kv.shape[3] * dim * heads)
    sizes_strides = zip(kv.shape[2:], kv.stride()[2:], expected, strict=True)
    # The stride of a dimension of size 1 is meaningless.
    if any(size > 1 and stride != want for size, stride, want in sizes_strides):
        raise PlanError(f"K/V: expected contiguous tokens, got strides {kv.stride()}")
    return kv if kv.ndim == 5 else kv.flatten(2, 3)
