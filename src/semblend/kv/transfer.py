"""Copy donor spans into a request's own slots: gather, rotate K, scatter, many spans in one call.

K is rotated in fp32 from the donor's position to the target's; a span that does
not move is copied bit for bit; V is always copied. On a GPU one Triton launch a
source does all layers and spans; elsewhere torch does, and that is the reference
the kernel is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from semblend.kv import torch_copy
from semblend.kv.layout import PagedLayout, by_slot
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, SpanCopy, flat_batches

__all__ = ["Backend", "PagedLayout", "SpanCopy", "copy_spans"]


class Backend(StrEnum):
    """Who does the copying."""

    AUTO = "auto"
    """Triton on a GPU, torch elsewhere."""
    TORCH = "torch"
    TRITON = "triton"


@torch.no_grad()
def copy_spans(
    pool: torch.Tensor,
    copies: Iterable[SpanCopy],
    table: RotaryTable,
    *,
    backend: Backend | str = Backend.AUTO,
) -> int:
    """Copy every span into `pool`; returns how many tokens were copied.

    Parameters
    ----------
    pool
        Destination, [layers, 2, pages, page_size, kv_heads, head_dim].
    copies
        Spans from any number of sources. Target slots are all different, and none of
        them is read by a span of the same call.
    table
        The model's rows; on the pool's device for speed.

    Raises
    ------
    PlanError
        If slots, positions, shapes or types do not fit. Nothing is written then.
    """
    destination = by_slot(pool)
    batches = flat_batches(destination, [copy for copy in copies if len(copy)], table)
    if table.cos.device != pool.device:
        table = table.to(pool.device)
    chosen = Backend(backend)
    if chosen is Backend.AUTO:
        chosen = Backend.TRITON if pool.is_cuda else Backend.TORCH
    copy_batch = _copier(chosen)
    for batch in batches:
        copy_batch(destination, _on_device(batch, pool.device), table)
    return sum(map(len, batches))


def _copier(backend: Backend) -> Callable[[torch.Tensor, CopyBatch, RotaryTable], None]:
    if backend is Backend.TORCH:
        return torch_copy.copy_batch
    # Imported where it is used: machines without a GPU need no Triton.
    from semblend.kv import triton_kernels

    return triton_kernels.copy_batch


def _on_device(batch: CopyBatch, device: torch.device) -> CopyBatch:
    """The batch with its source on `device`; from elsewhere only the needed rows travel."""
    if batch.source.device == device:
        return batch
    slots = batch.source_slots
    low, high = int(slots.min()), int(slots.max()) + 1
    if high - low <= 2 * slots.size:
        return replace(
            batch,
            source=batch.source[:, :, low:high].to(device, non_blocking=True),
            source_slots=slots - low,
        )
    rows = batch.source.index_select(2, torch.from_numpy(slots).to(batch.source.device))
    return replace(
        batch,
        source=rows.to(device, non_blocking=True),
        source_slots=np.arange(slots.size, dtype=np.int64),
    )
