"""Gather, rotate, scatter as one Triton kernel: one launch over all layers, spans and sources.

The work is moving bytes, so the kernel is shaped for that. A program owns a tile
of (token, head) rows: it reads slots, positions and rotary rows once, keeps them
in registers and walks over several layers with them, so that per layer nothing
is read but K and V and nothing is written but K and V, in 16-byte accesses.
Semantics are those of `kv.torch_copy`; `copy_spans` checks the input.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from semblend.core.errors import MissingExtraError
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch

try:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError as error:
    raise MissingExtraError(
        package="triton", extra="gpu", purpose="Copying K/V on a GPU"
    ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """How the work is cut up. Results do not depend on it; benchmarks/gpu/kernels.py chose it."""

    rows: int = 16
    """(token, head) rows a program owns; a power of two."""
    layers: int = 14
    """Layers a program walks over with the same rows."""
    warps: int = 4


DEFAULT_SHAPE = LaunchShape()


def copy_batch(destination: torch.Tensor, batch: CopyBatch, table: RotaryTable) -> None:
    """Copy a checked batch into `destination`, [layers, 2, slots, kv_heads, head_dim]."""
    launch(destination, prepare(destination.device, batch), table)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A batch as the kernel reads it."""

    sources: tuple[torch.Tensor, ...]
    index: torch.Tensor
    """int64 on the device: by token source number, source slot, target slot, source position
    and target position; then by source its distance from the first one, its layer stride
    and its K-to-V stride, all in elements."""
    tokens: int
    alignment: int
    """What every distance and stride is a multiple of: 16 allows 16-byte accesses."""


def prepare(device: torch.device, batch: CopyBatch) -> Prepared:
    """Put everything the kernel has to know into one transfer. Sources are on the device."""
    first, itemsize = batch.sources[0].data_ptr(), batch.sources[0].element_size()
    # Kernels take one pointer, so the other sources are reached by their distance from it.
    shapes = np.array(
        [((s.data_ptr() - first) // itemsize, *s.stride()[:2]) for s in batch.sources],
        dtype=np.int64,
    )
    arrays = (
        batch.source_numbers,
        batch.source_slots,
        batch.target_slots,
        batch.source_positions,
        batch.target_positions,
        *shapes.T,
    )
    size = sum(array.size for array in arrays)
    index = torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=index.numpy())
    return Prepared(
        sources=batch.sources,
        index=index.to(device, non_blocking=True),
        tokens=len(batch),
        alignment=16 if not (shapes % 16).any() else 1,
    )


def launch(
    destination: torch.Tensor,
    prepared: Prepared,
    table: RotaryTable,
    shape: LaunchShape = DEFAULT_SHAPE,
) -> None:
    """Start the kernel on checked input that is all on one device."""
    layers, _, _, heads, head_dim = destination.shape
    half = table.rotary_dim // 2
    grid = (-(-prepared.tokens * heads // shape.rows), -(-layers // shape.layers))
    with _on(destination.device):
        _copy_rotate[grid](
            prepared.sources[0],
            destination,
            table.cos,
            table.sin,
            prepared.index,
            prepared.tokens,
            len(prepared.sources),
            layers,
            shape.layers,
            destination.stride(0),
            destination.stride(1),
            heads=heads,
            head_dim=head_dim,
            half=half,
            interleaved=table.pairing is Pairing.INTERLEAVED,
            half_block=_power_of_two(half),
            head_block=_power_of_two(head_dim),
            rest_block=_power_of_two(max(1, head_dim - 2 * half)),
            tile_rows=shape.rows,
            alignment=prepared.alignment,
            num_warps=shape.warps,
        )


def _power_of_two(number: int) -> int:
    """The least that is not below `number`; Triton's own takes two microseconds a call."""
    return 1 << (number - 1).bit_length()


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _turn(first, second, cos, sin, moves):  # type: ignore[no-untyped-def]
    """A pair turned in fp32; rows that do not move keep their bits (1 * x loses -0.0 and NaN)."""
    a, b = first.to(tl.float32), second.to(tl.float32)
    turned_first = (a * cos - b * sin).to(first.dtype)
    turned_second = (b * cos + a * sin).to(second.dtype)
    return tl.where(moves, turned_first, first), tl.where(moves, turned_second, second)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _copy_rotate(  # type: ignore[no-untyped-def]
    source,
    target,
    cos_table,
    sin_table,
    index,
    tokens,
    sources,
    layers,
    layers_each,
    target_layer_stride,
    target_kv_stride,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    half: tl.constexpr,
    interleaved: tl.constexpr,
    half_block: tl.constexpr,
    head_block: tl.constexpr,
    rest_block: tl.constexpr,
    tile_rows: tl.constexpr,
    alignment: tl.constexpr,
):
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token = row // heads
    head = row % heads
    live = token < tokens
    number = tl.load(index + token, mask=live, other=0)
    source_slot = tl.load(index + tokens + token, mask=live, other=0)
    target_slot = tl.load(index + 2 * tokens + token, mask=live, other=0)
    source_position = tl.load(index + 3 * tokens + token, mask=live, other=0)
    target_position = tl.load(index + 4 * tokens + token, mask=live, other=0)
    shapes = index + 5 * tokens + number
    distance = tl.multiple_of(tl.load(shapes, mask=live, other=0), alignment)
    layer_stride = tl.multiple_of(tl.load(shapes + sources, mask=live, other=0), alignment)
    kv_stride = tl.multiple_of(tl.load(shapes + 2 * sources, mask=live, other=0), alignment)
    read = distance + (source_slot * heads + head) * head_dim
    write = (target_slot * heads + head) * head_dim

    pair = tl.arange(0, half_block)
    half_mask = live[:, None] & (pair < half)[None, :]
    from_row = source_position[:, None] * half + pair[None, :]
    to_row = target_position[:, None] * half + pair[None, :]
    cos_from = tl.load(cos_table + from_row, mask=half_mask, other=1.0)
    sin_from = tl.load(sin_table + from_row, mask=half_mask, other=0.0)
    cos_to = tl.load(cos_table + to_row, mask=half_mask, other=1.0)
    sin_to = tl.load(sin_table + to_row, mask=half_mask, other=0.0)
    scale = 1.0 / (cos_from * cos_from + sin_from * sin_from)
    cos = (cos_to * cos_from + sin_to * sin_from) * scale
    sin = (sin_to * cos_from - cos_to * sin_from) * scale
    moves = (source_position != target_position)[:, None]

    column = tl.arange(0, head_block)
    head_mask = live[:, None] & (column < head_dim)[None, :]
    both = tl.arange(0, 2 * half_block)
    both_mask = live[:, None] & (both < 2 * half)[None, :]
    rest = 2 * half + tl.arange(0, rest_block)
    rest_mask = live[:, None] & (rest < head_dim)[None, :]

    first_layer = tl.program_id(1) * layers_each
    for layer in range(first_layer, min(first_layer + layers_each, layers)):
        keys_in = source + (read + layer * layer_stride)[:, None]
        keys_out = target + tl.cast(layer, tl.int64) * target_layer_stride + write[:, None]
        # All loads of a layer stand before its stores, so that they are in flight together.
        values = tl.load(keys_in + kv_stride[:, None] + column[None, :], mask=head_mask)
        if head_dim > 2 * half:
            passed = tl.load(keys_in + rest[None, :], mask=rest_mask)
        if interleaved:
            keys = tl.load(keys_in + both[None, :], mask=both_mask)
            first, second = tl.split(tl.reshape(keys, (tile_rows, half_block, 2)))
            first, second = _turn(first, second, cos, sin, moves)
            keys = tl.reshape(tl.join(first, second), (tile_rows, 2 * half_block))
            tl.store(keys_out + both[None, :], keys, mask=both_mask)
        else:
            first = tl.load(keys_in + pair[None, :], mask=half_mask)
            second = tl.load(keys_in + half + pair[None, :], mask=half_mask)
            first, second = _turn(first, second, cos, sin, moves)
            tl.store(keys_out + pair[None, :], first, mask=half_mask)
            tl.store(keys_out + half + pair[None, :], second, mask=half_mask)
        if head_dim > 2 * half:
            tl.store(keys_out + rest[None, :], passed, mask=rest_mask)
        tl.store(keys_out + target_kv_stride + column[None, :], values, mask=head_mask)
