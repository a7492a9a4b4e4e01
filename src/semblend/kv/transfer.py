"""The only way K/V moves: donor spans into a request's own slots, on any engine.

K is rotated in fp32 from the donor's position to the target's. A span that does not move is copied
bit for bit. V is always copied. With a depth-drift table, what moved far is shifted to its new
depth. On a GPU, one Triton launch does all layers, spans and sources. Elsewhere torch does it,
which is also the kernel's reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import torch

from semblend.core.faults import FaultPoint, fault_point
from semblend.kv import torch_copy
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layerwise import LayerwiseLoad, chunk_layers
from semblend.kv.layout import PagedLayout
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, Destination, SpanCopy, flat_batch

_STAGED_BYTES = 256 << 20
"""Approximate device memory that a copy from the host takes besides the pool."""

__all__ = ["Backend", "PagedLayout", "SpanCopy", "copy_spans"]


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
    table: RotaryTable,
    *,
    drift: DepthDrift | None = None,
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

    Raises
    ------
    PlanError
        If slots, positions, shapes or types do not fit. Nothing is written then.
    """
    destination = PagedKv.of_tensor(pool) if isinstance(pool, torch.Tensor) else pool
    spans = copies if isinstance(copies, CopyBatch) else tuple(copies)
    batch = flat_batch(destination, spans, table)
    if batch is None:
        return 0
    device = destination.device
    table = table if table.cos.device == device else table.to(device)
    drift = drift if drift is None or drift.means.device == device else drift.to(device)
    chosen = Backend(backend)
    if chosen is Backend.AUTO:
        chosen = Backend.TRITON if device.type == "cuda" else Backend.TORCH
    if chosen is Backend.TORCH or not isinstance(destination, PagedKv):
        torch_copy.copy_batch(destination, batch, table, drift=drift)
    elif all(source.device == device for source in batch.sources):
        # Imported here, so that machines without a GPU need no Triton.
        from semblend.kv import triton_copy

        triton_copy.copy_batch(destination, batch, table, drift=drift)
    else:
        heads, dim = destination.head_shape
        layer_bytes = 2 * len(batch) * heads * dim * destination.dtype.itemsize
        most = chunk_layers(layer_bytes=layer_bytes, staged_bytes=_STAGED_BYTES)
        LayerwiseLoad(destination, batch, table, drift=drift, most_layers=most).place_all()
    return len(batch)
