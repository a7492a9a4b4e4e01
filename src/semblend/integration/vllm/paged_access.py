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

import torch

from semblend.core.errors import UnsupportedModelError
from semblend.integration.vllm.layer_kv import latent_dim, parts_of, update_cache, window_of
from semblend.integration.worker.port import KvAccess
from semblend.kv.numbers import decoded, is_fp8
from semblend.kv.probed_strides import probed_places, strided_pool
from semblend.kv.span_batch import Destination


class PagedAccess(KvAccess):
    """Token-wise access to the K/V of all attention layers.

    Token tensors are [tokens, kv_heads, head_dim]; a slot is
    block * block_size + offset.
    """

    scratch_block = 1
    """Block 0 is vLLM's null block. Nothing is cached yet when the layout is probed."""

    def __init__(
        self,
        layers: dict[str, Any],
        *,
        block_size: int,
        draft_layers: int = 0,
        computed_in: torch.dtype | None = None,
    ) -> None:
        """Learn the layout from layers whose caches are allocated; a drafter's come last.

        Parameters
        ----------
        computed_in
            The type in which the model hands K/V to its cache; by default the cache's own.

        Raises
        ------
        UnsupportedModelError
            If layers differ in shape, or a block does not hold each number exactly once.
        """
        if not layers:
            raise UnsupportedModelError("the engine has no attention layers with a K/V cache")
        self.named_layers = layers
        self.layers = tuple(layers.values())
        self.block_size = block_size
        self.layer_count, self.draft_layers = len(self.layers), draft_layers
        first = self.layers[0]
        self.blocks = int(first.kv_cache.shape[0])
        self.kv_heads, self.head_dim = int(first.num_kv_heads), int(first.head_size)
        self.parts = parts_of(first)
        self.dtype, self.device = first.kv_cache.dtype, first.kv_cache.device
        if is_fp8(self.dtype):
            if self.parts != 2:
                raise UnsupportedModelError("fp8 rows of latents: they have formats of their own")
            self.clipped = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._computed_in = self.dtype if computed_in is None else computed_in
        for name, layer in layers.items():
            if (
                layer.kv_cache.shape != first.kv_cache.shape
                or layer.kv_cache.dtype != self.dtype
                or parts_of(layer) != self.parts
                or latent_dim(layer) != latent_dim(first)
            ):
                raise UnsupportedModelError(f"layer {name}: its K/V cache differs from layer 0's")
        self._places = self._probe(first)
        self.pool = strided_pool(
            [layer.kv_cache for layer in self.layers],
            self._places,
            shape=(block_size, self.kv_heads, self.head_dim),
            clipped=self.clipped,
        )
        """The cache as strides; None if only the backend can address it."""

    @property
    def destination(self) -> Destination:
        """Where spans are copied to."""
        return self if self.pool is None else self.pool

    @property
    def slot_count(self) -> int:
        """Capacity of the cache in tokens."""
        return self.blocks * self.block_size

    def window(self, layer: int) -> int | None:
        """Tokens a query of a layer sees, itself included; None for all before it."""
        return window_of(self.layers[layer])

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor | None, slots: torch.Tensor
    ) -> None:
        """Write K and V of tokens into their slots, in the cache's own type."""
        module = self.layers[layer]
        if not is_fp8(self.dtype):
            update_cache(module, keys, values, module.kv_cache, slots)
            return
        # The backend would quantise them again.
        cache = module.kv_cache.view(self.blocks, -1)
        block, offset = (slots // self.block_size)[:, None], slots % self.block_size
        parts = (keys,) if values is None else (keys, values)
        for numbers, places in zip(parts, self._places, strict=True):
            cache[block, places.view(self.block_size, -1)[offset]] = numbers.flatten(1)

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        """K/V of positions [start, end): [layers, parts, tokens, kv_heads, head_dim]."""
        return self._read(self.layers, block_ids, start, end)

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """K/V of [start, end) on one layer, [parts, tokens, kv_heads, head_dim], as numbers."""
        module = self.layers[layer]
        (kv,) = self._read([module], block_ids, start, end)
        return decoded(kv) * _scales(module) if is_fp8(self.dtype) else kv

    def _read(
        self, layers: Sequence[Any], block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        first, last = start // self.block_size, -(-end // self.block_size)
        blocks = torch.tensor(block_ids[first:last], device=self.device)
        skip = start - first * self.block_size
        shape = (len(layers), self.parts, end - start, *self.head_shape)
        result = torch.empty(shape, dtype=self.dtype, device=self.device)
        for layer, into in zip(layers, result, strict=True):
            flat = layer.kv_cache.index_select(0, blocks).flatten(1)
            for part, places in zip(into, self._places, strict=True):
                tokens = flat.index_select(1, places).view(-1, *self.head_shape)
                part.copy_(tokens[skip : skip + end - start])
        return result

    def _probe(self, layer: Any) -> tuple[torch.Tensor, ...]:
        """Find where in a block each (offset, head, dim) of each part is."""
        slots = torch.arange(self.block_size, dtype=torch.int64, device=self.device)
        target = _Unscaled(layer) if is_fp8(self.dtype) else layer

        def write(numbers: torch.Tensor, cache: torch.Tensor) -> None:
            parts = [part.contiguous() for part in numbers.to(self._computed_in)]
            update_cache(target, parts[0], parts[1] if self.parts == 2 else None, cache, slots)

        shape = (self.parts, self.block_size, self.kv_heads, self.head_dim)
        places = probed_places(write, layer.kv_cache[0], shape)
        if places is None:
            raise UnsupportedModelError(
                f"attention backend {type(layer.impl).__name__}: a block of the K/V cache does not "
                f"hold each number of its tokens exactly once"
            )
        return places


class _Unscaled:
    """A layer whose fp8 cache has scale 1, so that the numbers written into it are those found."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._k_scale = self._v_scale = torch.ones(1, device=layer.kv_cache.device)
        self._k_scale_float = self._v_scale_float = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _scales(layer: Any) -> torch.Tensor:
    """What an fp8 byte's number is multiplied by: [2, 1, 1 or kv_heads, 1], K's first.

    CPU kernels know one scale a tensor, and vLLM gives them the largest of the heads'.
    """
    cache = layer.kv_cache
    if cache.device.type == "cpu":
        both = torch.tensor([[layer._k_scale_float], [layer._v_scale_float]])
    else:
        both = torch.stack((layer._k_scale.flatten(), layer._v_scale.flatten()))
    return both.float().to(cache.device)[:, None, :, None]
