"""A K/V cache whose layout was found by writing known numbers into it, as strided views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from semblend.core.errors import PlanError
from semblend.kv.layout import SlotArray
from semblend.kv.numbers import decoded, is_fp8
from semblend.kv.paged_kv import PagedKv

_BASE = 64
"""Digits below this are exact in float16, bfloat16 and float32."""
_FP8_BASE = 16
"""The same for fp8."""


def probed_places(
    write: Callable[[torch.Tensor, torch.Tensor], None],
    block: torch.Tensor,
    shape: tuple[int, int, int, int],
) -> tuple[torch.Tensor, ...] | None:
    """Where in a block each (offset, head, number) of each part is.

    None if the block does not hold each of its numbers exactly once.

    Parameters
    ----------
    write
        Writes a block's numbers, of this shape, into an empty cache of one block.
    block
        A block as the cache has it.
    shape
        Parts, tokens per block, heads, numbers per head.
    """
    count, device = math.prod(shape), block.device
    numbers = torch.arange(count, device=device).view(shape)
    found = torch.zeros(block.numel(), dtype=torch.int64, device=device)
    weight, base = 1, _FP8_BASE if is_fp8(block.dtype) else _BASE
    while weight < count:
        scratch = torch.zeros((1, *block.shape), dtype=block.dtype, device=device)
        write((numbers // weight) % base, scratch)
        found += decoded(scratch.flatten()).to(torch.int64) * weight
        weight *= base
    ordered, places = torch.sort(found)
    if found.numel() != count or not torch.equal(ordered, torch.arange(count).to(found)):
        return None
    return tuple(part.contiguous() for part in places.view(shape[0], -1))


def strided_pool(
    caches: Sequence[torch.Tensor],
    places: tuple[torch.Tensor, ...],
    *,
    shape: tuple[int, int, int],
    clipped: torch.Tensor | None = None,
) -> PagedKv | None:
    """The caches as strided views; None if the layout has no strides.

    Parameters
    ----------
    caches
        One per layer, blocks along the first dimension, with any strides.
    places
        For K and V (or for their one part), where each (offset, head, number) is among a
        block's numbers, counted in the order of the cache's dimensions.
    shape
        Tokens per block, heads, numbers per head.
    clipped
        Counts what does not fit, where the caches hold fp8.
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
        values = views[1] if len(views) == 2 else ()
        return PagedKv(keys=views[0], values=values, clipped=clipped)
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
