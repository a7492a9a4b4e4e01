"""The only way K/V moves: donor spans into a request's own slots, on any engine.

K is rotated in fp32 from the donor's position to the target's. A span that does not move is copied
bit for bit. V is always copied. With a depth-drift table, what moved far is shifted to its new
depth. On a GPU, one Triton launch does all layers, spans and sources. Elsewhere torch does it,
which is also the kernel's reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

import torch

from semblend.core.faults import FaultPoint, fault_point
from semblend.kv import torch_copy
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layer_rotary import Rotary
from semblend.kv.layerwise import LayerwiseLoad, chunk_layers
from semblend.kv.paged_kv import PagedKv
from semblend.kv.span_batch import CopyBatch, Destination, SpanCopy, flat_batch, flattened

_STAGED_BYTES = 256 << 20
"""Approximate device memory that a copy from the host takes besides the pool."""


class Backend(StrEnum):
    """What does the copying."""

    AUTO = "auto"
    """Triton on a GPU, torch elsewhere."""
    TORCH = "torch"
    TRITON = "triton"


@fault_point(FaultPoint.COPY, after=True)
@torch.no_grad()
def copy_spans(
    pool: torch.Tensor | Destination,
    copies: Iterable[SpanCopy] | CopyBatch,
    table: Rotary,
    *,
    drift: DepthDrift | None = None,
    lookup: torch.Tensor | None = None,
    backend: Backend | str = Backend.AUTO,
) -> int:
    """Copy every span into `pool` and return the number of tokens copied.

    Parameters
    ----------
    pool
        Destination: any engine's pool, or one of ours as a tensor [layers, 2, pages, page_size,
        kv_heads, head_dim].
    copies
        Spans from any number of sources, or a batch of them. Target slots are all
        different, and no span of the same call reads one of them. Sources in host memory are
        read until the current stream gets there, so their owner must keep them until then.
    table, drift
        The model's rows and, for policies that shift depths, its means; on the pool's
        device for speed.
    lookup
        int64 [places], on the pool's device: slots that are known only there, all different. The
        slots of `copies` are then places in it, and a GPU is not waited for. What is checked is
        the places.

    Raises
    ------
    PlanError
        If slots, positions, shapes or types do not fit. Nothing is written then.
    """
    destination = PagedKv.of_tensor(pool) if isinstance(pool, torch.Tensor) else pool
    device = destination.device
    chosen = Backend(backend)
    if chosen is Backend.AUTO:
        chosen = Backend.TRITON if device.type == "cuda" else Backend.TORCH
    flat = flattened(copies if isinstance(copies, CopyBatch) else tuple(copies))
    direct = (
        chosen is Backend.TRITON
        and isinstance(destination, PagedKv)
        and all(source.device == device for source in flat.sources)
    )
    if lookup is not None:
        flat = replace(flat, lookup=lookup)
    batch = flat_batch(destination, flat if direct else flat.looked_up(), table)
    if batch is None:
        return 0
    table = table if table.device == device else table.to(device)
    drift = drift if drift is None or drift.means.device == device else drift.to(device)
    if chosen is Backend.TORCH or not isinstance(destination, PagedKv):
        torch_copy.copy_batch(destination, batch, table, drift=drift)
    elif direct:
        # Imported here, so that machines without a GPU need no Triton.
        from semblend.kv import triton_copy

        triton_copy.copy_batch(destination, batch, table, drift=drift)
    else:
        heads, dim = destination.head_shape
        layer_bytes = destination.parts * len(batch) * heads * dim * destination.dtype.itemsize
        most = chunk_layers(layer_bytes=layer_bytes, staged_bytes=_STAGED_BYTES)
        LayerwiseLoad(destination, batch, table, drift=drift, most_layers=most).place_all()
    return len(batch)
