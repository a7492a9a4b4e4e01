"""Reads and writes K/V of single tokens in vLLM's paged cache, whatever its layout.

Backends arrange the inside of a block to suit their kernels (the CPU backend packs K by
instruction set), so the layout is probed, not assumed: known numbers are written into a
scratch block with the backend's own `do_kv_cache_update`, and the places where they land are
where they are read from. If these places form strides, as on GPUs, the cache is a pool like
any other (`kv.paged_kv`) and one kernel reads and writes all layers. If not, writing goes
through that same call, layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.kv.layout import SlotArray
from semblend.kv.paged_kv import PagedKv
from semblend.kv.span_batch import Destination

_BASE = 64
"""Digits below this are exact in every cache type, including float16 and bfloat16."""


class PagedAccess:
    """Token-wise access to the K/V of all attention layers.

    Token tensors are [tokens, kv_heads, head_dim]; a slot is
    block * block_size + offset.
    """

    scratch_block = 1
    """Block 0 is vLLM's null block. Nothing is cached yet when the layout is probed."""

    def __init__(self, layers: dict[str, Any], *, block_size: int) -> None:
        """Learn the layout from layers whose caches are allocated.

        Raises
        ------
        UnsupportedModelError
            If layers differ in shape, or a block does not hold each number exactly once.
        """
        if not layers:
            raise UnsupportedModelError("the engine has no attention layers with a K/V cache")
        self.names = tuple(layers)
        self.layers = tuple(layers.values())
        self.block_size = block_size
        first = self.layers[0]
        self.kv_heads, self.head_dim = int(first.num_kv_heads), int(first.head_size)
        self.dtype, self.device = first.kv_cache.dtype, first.kv_cache.device
        for name, layer in layers.items():
            if layer.kv_cache.shape != first.kv_cache.shape or layer.kv_cache.dtype != self.dtype:
                raise UnsupportedModelError(f"layer {name}: its K/V cache differs from layer 0's")
        self._places = self._probe(first)
        self.pool: PagedKv | None = strided_pool(
            [layer.kv_cache for layer in self.layers],
            self._places,
            shape=(block_size, self.kv_heads, self.head_dim),
        )
        """The cache as strides; None if only the backend can address it."""

    @property
    def destination(self) -> Destination:
        """Where spans are copied to."""
        return self if self.pool is None else self.pool

    @property
    def layer_count(self) -> int:
        """Layers with K/V."""
        return len(self.layers)

    @property
    def slot_count(self) -> int:
        """Capacity of the cache in tokens."""
        return self.blocks * self.block_size

    @property
    def head_shape(self) -> tuple[int, int]:
        """K/V heads of this rank, and the head dimension."""
        return self.kv_heads, self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V on all layers of this rank."""
        return len(self.layers) * 2 * self.kv_heads * self.head_dim * int(self.dtype.itemsize)

    @property
    def blocks(self) -> int:
        """Blocks in the cache."""
        return int(self.layers[0].kv_cache.shape[0])

    def host_slots(self, block_ids: Sequence[int], start: int, end: int) -> SlotArray:
        """Slots of positions [start, end) of a request with these blocks, on the host."""
        table = np.asarray(block_ids, dtype=np.int64)
        positions = np.arange(start, end, dtype=np.int64)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write K and V of tokens into their slots."""
        module = self.layers[layer]
        module.impl.do_kv_cache_update(module, keys, values, module.kv_cache, slots)

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        """K/V of positions [start, end): [layers, 2, tokens, kv_heads, head_dim]."""
        first, last = start // self.block_size, -(-end // self.block_size)
        blocks = torch.tensor(block_ids[first:last], device=self.device)
        skip = start - first * self.block_size
        shape = (len(self.layers), 2, end - start, self.kv_heads, self.head_dim)
        result = torch.empty(shape, dtype=self.dtype, device=self.device)
        for index, layer in enumerate(self.layers):
            self._read_into(result[index], layer, blocks, skip)
        return result

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """K/V of positions [start, end) on one layer: [2, tokens, kv_heads, head_dim]."""
        first, last = start // self.block_size, -(-end // self.block_size)
        blocks = torch.tensor(block_ids[first:last], device=self.device)
        shape = (2, end - start, self.kv_heads, self.head_dim)
        result = torch.empty(shape, dtype=self.dtype, device=self.device)
        self._read_into(result, self.layers[layer], blocks, start - first * self.block_size)
        return result

    def _read_into(self, result: torch.Tensor, layer: Any, blocks: torch.Tensor, skip: int) -> None:
        """Fill [2, tokens, kv_heads, head_dim] from a layer's blocks, skipping `skip` tokens."""
        flat = layer.kv_cache.index_select(0, blocks).flatten(1)
        for part, places in enumerate(self._places):
            tokens = flat.index_select(1, places).view(-1, self.kv_heads, self.head_dim)
            result[part] = tokens[skip : skip + result.shape[1]]

    def _probe(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Find where in a block K and V of each (offset, head, dim) are."""
        shape = (2, self.block_size, self.kv_heads, self.head_dim)
        count = 2 * self.block_size * self.kv_heads * self.head_dim
        numbers = torch.arange(count, device=self.device).view(shape)
        slots = torch.arange(self.block_size, dtype=torch.int64, device=self.device)
        found = torch.zeros(layer.kv_cache[0].numel(), dtype=torch.int64, device=self.device)
        weight = 1
        while weight < count:
            scratch = torch.zeros(
                (1, *layer.kv_cache.shape[1:]), dtype=self.dtype, device=self.device
            )
            digits = ((numbers // weight) % _BASE).to(self.dtype)
            layer.impl.do_kv_cache_update(
                layer, digits[0].contiguous(), digits[1].contiguous(), scratch, slots
            )
            found += scratch.flatten().to(torch.int64) * weight
            weight *= _BASE
        ordered, places = torch.sort(found)
        if found.numel() != count or not torch.equal(ordered, torch.arange(count).to(found)):
            raise UnsupportedModelError(
                f"attention backend {type(layer.impl).__name__}: a block of the K/V cache does not "
                f"hold each number of its tokens exactly once"
            )
        half = count // 2
        return places[:half].contiguous(), places[half:].contiguous()


def strided_pool(
    caches: Sequence[torch.Tensor],
    places: tuple[torch.Tensor, torch.Tensor],
    *,
    shape: tuple[int, int, int],
) -> PagedKv | None:
    """The caches as strided views; None if the layout has no strides.

    Parameters
    ----------
    caches
        One per layer, blocks along the first dimension, with any strides.
    places
        For K and V, where each (offset, head, number) is among a block's numbers, counted
        in the order of the cache's dimensions.
    shape
        Tokens per block, heads, numbers per head.
    """
    views: list[tuple[torch.Tensor, ...]] = []
    for part in places:
        found = _strides(caches[0], part.cpu().numpy().reshape(shape))
        if found is None:
            return None
        start, strides = found
        views.append(
            tuple(
                cache.as_strided(
                    (cache.shape[0], *shape),
                    (cache.stride(0), *strides),
                    cache.storage_offset() + start,
                )
                for cache in caches
            )
        )
    if any(cache.stride() != caches[0].stride() for cache in caches):
        return None
    try:
        return PagedKv(keys=views[0], values=views[1])
    except PlanError:
        return None  # K and V, or layers, are laid out differently


def _strides(cache: torch.Tensor, places: SlotArray) -> tuple[int, tuple[int, ...]] | None:
    """Where a block's first number is in memory and the strides from there, if there are any."""
    inside = np.unravel_index(places, cache.shape[1:])
    strides = cache.stride()[1:]
    at = sum(index * stride for index, stride in zip(inside, strides, strict=True))
    memory = np.asarray(at, dtype=np.int64)
    start = int(memory[0, 0, 0])
    steps = tuple(
        int(np.take(memory, 1, axis).flat[0]) - start if memory.shape[axis] > 1 else 0
        for axis in range(3)
    )
    straight = start + sum(
        step * np.arange(size).reshape([-1 if at == axis else 1 for at in range(3)])
        for axis, (step, size) in enumerate(zip(steps, memory.shape, strict=True))
    )
    # A tensor cannot have negative strides.
    return (start, steps) if np.array_equal(memory, straight) and min(steps) >= 0 else None
