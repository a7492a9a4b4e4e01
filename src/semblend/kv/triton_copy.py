"""Copies spans with one launch of the Triton kernel, over all layers, spans and sources.

Sources may be in pinned host memory, which the device reads over the bus. Semantics are those of
`kv.torch_copy`; `copy_spans` checks the input.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semblend.kv.depth_drift import SAME_DEPTH_TOKENS, DepthDrift, is_shifted, step_depths
from semblend.kv.layer_rotary import Rotary
from semblend.kv.numbers import is_fp8
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_spec import Pairing
from semblend.kv.span_batch import CopyBatch, Source
from semblend.kv.triton_kernels import copy_rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """How the work is divided. Results do not depend on it; benchmarks/gpu/kernels.py chose it."""

    rows: int = 16
    """(token, head) rows per program; a power of two."""
    layers: int = 14
    """Layers a program processes with the same rows."""
    warps: int = 4


DEFAULT_SHAPE = LaunchShape()


def copy_batch(
    destination: PagedKv, batch: CopyBatch, table: Rotary, *, drift: DepthDrift | None = None
) -> None:
    """Copy a checked batch whose sources the device can read. `drift` and `table` are on it."""
    launch(destination, prepare(destination, batch, drift=drift), table)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A batch as the kernel reads it."""

    base: torch.Tensor
    """The tensor that source distances are relative to."""
    source_strides: tuple[int, int, int, int]
    """Of a block, a token, a head and an element, in elements, the same for all sources."""
    source_block: int
    """Tokens per source block."""
    layered: bool
    """Whether the only source is a pool whose layers are looked up."""
    index: torch.Tensor
    """int64 on the device, see `prepare`."""
    tokens: int
    sources: int
    alignment: int
    """Common divisor of all distances and strides; 16 allows 16-byte accesses."""
    drift: DepthDrift | None = None
    """Set if some tokens are shifted."""
    depths: torch.Tensor | None = None
    """Their places in its table; part of the index."""


def prepare(
    destination: PagedKv,
    batch: CopyBatch,
    *,
    base: torch.Tensor | None = None,
    drift: DepthDrift | None = None,
) -> Prepared:
    """Put everything the kernel needs to know into one transfer.

    The index holds, by token: source number, source slot, target slot, source position and target
    position. By source: its distance from `base`, its layer stride and its K-to-V stride. By layer:
    distances of the destination's K and V (if there is V) from its first K and, if the source is a
    pool, the same for it. By token, if depths are shifted: four fp32 values that locate its depths,
    after and before, between a table's rows. Distances and strides count elements.

    Parameters
    ----------
    base
        The first source by default. Sources that move together keep their distances from it.
    """
    first = batch.sources[0]
    pool = first if isinstance(first, PagedKv) else None
    if base is None:
        base = _first_tensor(first)
    origin, itemsize = base.data_ptr(), base.element_size()
    # Kernels take one pointer, so other sources are addressed by their distance from it.
    shapes = np.array(
        [((_first_tensor(s).data_ptr() - origin) // itemsize, *_outer(s)) for s in batch.sources],
        dtype=np.int64,
    )
    places = [_distances(kv) for kv in (destination, pool) if kv is not None]
    heads, dim = destination.head_shape
    strides = (heads * dim, 0, dim, 1) if pool is None else pool.strides
    arrays = [
        batch.source_numbers,
        batch.source_slots,
        batch.target_slots,
        batch.source_positions,
        batch.target_positions,
        *shapes.T,
        *places,
    ]
    shifted = drift is not None and bool(is_shifted(batch).any())
    if shifted and drift is not None:
        arrays.append(_depths(batch, drift).reshape(-1).view(np.int64))
    size = sum(array.size for array in arrays)
    device = destination.device
    index = torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=index.numpy())
    outer = [*destination.strides[:3], *strides[:3]]
    even = not (shapes % 16).any() and not any((place % 16).any() for place in places)
    index = index.to(device, non_blocking=True)
    if batch.lookup is not None:
        both = index[len(batch) : 3 * len(batch)]
        both.copy_(batch.lookup[both])
    return Prepared(
        base=base,
        source_strides=strides,
        source_block=1 if pool is None else pool.block_size,
        layered=pool is not None,
        index=index,
        tokens=len(batch),
        sources=len(batch.sources),
        alignment=16 if even and not any(stride % 16 for stride in outer) else 1,
        drift=drift if shifted else None,
        depths=index[size - arrays[-1].size :].view(torch.float32) if shifted else None,
    )


def launch(
    destination: PagedKv,
    prepared: Prepared,
    table: Rotary,
    shape: LaunchShape = DEFAULT_SHAPE,
    *,
    layers: range | None = None,
    source_layer: int = 0,
) -> None:
    """Start the kernel on checked input that the device can read.

    Parameters
    ----------
    layers
        Layers of the destination; all by default.
    source_layer
        Layer of the sources that goes to the first of them.
    """
    layers = range(destination.layer_count) if layers is None else layers
    heads, head_dim = destination.head_shape
    drift, ahead = prepared.drift, source_layer - layers.start
    # Where nothing is counted nothing moves: then bytes are copied as they are.
    counts = is_fp8(destination.dtype) and destination.clipped is not None
    with _on(destination.device):
        for run, rows in table.runs(layers):
            half = rows.rotary_dim // 2
            # Unused arguments still need a pointer.
            means = rows.cos if drift is None else drift.means
            depths = rows.cos if prepared.depths is None else prepared.depths
            grid = (-(-prepared.tokens * heads // shape.rows), -(-len(run) // shape.layers))
            copy_rotate[grid](
                prepared.base,
                destination.keys[0],
                rows.cos,
                rows.sin,
                means,
                depths,
                prepared.index,
                destination.clipped if counts else prepared.index,
                prepared.tokens,
                prepared.sources,
                destination.layer_count,
                run.start,
                len(run),
                ahead,
                shape.layers,
                *prepared.source_strides,
                *destination.strides,
                0 if drift is None else drift.means.shape[2],
                SAME_DEPTH_TOKENS,
                source_block=prepared.source_block,
                target_block=destination.block_size,
                layered=prepared.layered,
                shifting=drift is not None,
                parts=destination.parts,
                heads=heads,
                head_dim=head_dim,
                offset=rows.offset,
                half=half,
                interleaved=rows.pairing is Pairing.INTERLEAVED,
                half_block=_power_of_two(half),
                head_block=_power_of_two(head_dim),
                rest_block=_power_of_two(max(1, head_dim - 2 * half)),
                tile_rows=shape.rows,
                alignment=prepared.alignment,
                fp8=counts,
                num_warps=shape.warps,
            )


def _first_tensor(source: Source) -> torch.Tensor:
    return source.keys[0] if isinstance(source, PagedKv) else source


def _outer(source: Source) -> tuple[int, int]:
    """Strides from layer to layer and from K to V. A pool's are in its table."""
    return (0, 0) if isinstance(source, PagedKv) else (source.stride(0), source.stride(1))


def _distances(kv: PagedKv) -> npt.NDArray[np.int64]:
    """From the first layer's K to every layer's K, then to every layer's V, in elements."""
    origin, itemsize = kv.keys[0].data_ptr(), kv.dtype.itemsize
    views = (*kv.keys, *kv.values)
    return np.array([(view.data_ptr() - origin) // itemsize for view in views], dtype=np.int64)


def _depths(batch: CopyBatch, drift: DepthDrift) -> npt.NDArray[np.float32]:
    """[4, tokens], with one more column if the number of tokens is odd; zeros if not shifted."""
    tokens = len(batch)
    depths = np.zeros((4, tokens + tokens % 2), dtype=np.float32)
    for at, positions in ((0, batch.target_positions), (2, batch.source_positions)):
        row, share = drift.places(step_depths(positions, batch.span_offsets))
        depths[at, :tokens], depths[at + 1, :tokens] = row, share
    return depths


def _power_of_two(number: int) -> int:
    """The smallest power of two not below `number`. Triton's own takes two microseconds."""
    return 1 << (number - 1).bit_length()


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
