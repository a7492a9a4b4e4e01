"""The paged K/V pool: one tensor under one byte limit, divided into pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.errors import CapacityError
from semblend.core.faults import FaultPoint, fault_point
from semblend.engine.cache.pages import PageAllocator, PageTable
from semblend.kv.layout import PagedLayout, by_slot
from semblend.kv.paged_kv import PagedKv


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """The shape of one model's K/V, on which a pool and a donor must agree."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class PagedPool:
    """K/V of all running requests and of the exact prefix cache.

    `data` has shape [layers, 2, pages, page_size, kv_heads, head_dim]. Index 0 of the second axis
    is K (rotated to its position), 1 is V. A *slot* is `page * page_size + offset`, the same in
    every layer. Pages are not cleared when reallocated, because no attention reads a slot before
    its request wrote it.
    """

    def __init__(
        self, shape: KvShape, *, capacity_bytes: int, page_size: int, device: torch.device
    ) -> None:
        page_bytes = shape.token_bytes * page_size
        pages = capacity_bytes // page_bytes
        if pages < 1:
            raise CapacityError(
                f"pool_bytes = {capacity_bytes}: one page of {page_size} tokens of this model "
                f"takes {page_bytes} bytes"
            )
        self.shape = shape
        self.page_size = page_size
        self.page_bytes = page_bytes
        self.allocator = PageAllocator(pages)
        self.data = PagedLayout(
            layers=shape.layers,
            pages=pages,
            page_size=page_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        ).allocate(dtype=shape.dtype, device=device)
        self.by_slot = by_slot(self.data)
        self.paged = PagedKv.of_tensor(self.data)
        # Make views once: indexing a tensor costs microseconds, and attention does it per layer.
        self._keys = [self.by_slot[layer, 0] for layer in range(shape.layers)]
        self._values = [self.by_slot[layer, 1] for layer in range(shape.layers)]

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens the pool has room for."""
        return self.allocator.total * self.page_size

    def keys(self, layer: int) -> torch.Tensor:
        """K of one layer by slot, shape [slots, kv_heads, head_dim]."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """V of one layer by slot, shape [slots, kv_heads, head_dim]."""
        return self._values[layer]

    def pages_for(self, tokens: int) -> int:
        """Number of pages for `tokens` positions."""
        return -(-tokens // self.page_size)

    def read_shape(self, tokens: int) -> tuple[int, ...]:
        """Shape of K/V for this many positions: [layers, 2, tokens, kv_heads, head_dim]."""
        return (*self.data.shape[:2], tokens, *self.data.shape[4:])

    @fault_point(FaultPoint.ALLOCATION)
    def read(
        self, table: PageTable, start: int, end: int, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A copy of K/V at positions [start, end): [layers, 2, end - start, kv_heads, head_dim].

        If `out` is given, the copy is made there. It must have this shape and the pool's type, on
        its device or in pinned host memory.
        """
        if out is None:
            shape = self.read_shape(end - start)
            out = torch.empty(shape, dtype=self.data.dtype, device=self.data.device)
        row = 0
        for slot, length in table.runs(start, end):
            _copy(out[:, :, row : row + length], self.by_slot[:, :, slot : slot + length])
            row += length
        if out.device != self.data.device:
            torch.cuda.current_stream(self.data.device).synchronize()
        return out


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy K/V without slowing down a running pass.

    On a CPU, numpy copies on the calling thread without the interpreter lock, while torch would
    start threads that compete with the running request. From a GPU, copy layer by layer: a strided
    copy would first be gathered by a kernel that takes processors from the pass, while plain copies
    use only the copy engine.
    """
    if target.device != source.device:
        for layer in range(len(target)):
            for kv in (0, 1):
                target[layer, kv].copy_(source[layer, kv], non_blocking=True)
    elif target.device.type == "cpu":
        np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
    else:
        target.copy_(source)
