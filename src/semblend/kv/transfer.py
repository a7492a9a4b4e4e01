"""Copy donor spans into a request's own slots: gather, rotate K, scatter, many spans in one call.

K is rotated in fp32 from the donor's position to the target's; a span that does
not move is copied bit for bit; V is always copied. On a GPU one Triton launch does
all layers, spans and sources; elsewhere torch does, and that is the reference the
kernel is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from semblend.core.faults import FaultPoint, fault_point
from semblend.kv import torch_copy
from semblend.kv.layout import PagedLayout, by_slot
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, SpanCopy, flat_batch

__all__ = ["Backend", "PagedLayout", "SpanCopy", "copy_spans"]


class Backend(StrEnum):
    """Who does the copying."""

    AUTO = "auto"
    """Triton on a GPU, torch elsewhere."""
    TORCH = "torch"
    TRITON = "triton"


@fault_point(FaultPoint.COPY, after=True)
@torch.no_grad()
def copy_spans(
    pool: torch.Tensor,
    copies: Iterable[SpanCopy] | CopyBatch,
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
        Spans from any number of sources, or a batch of them. Target slots are all
        different, and none of them is read by a span of the same call.
    table
        The model's rows; on the pool's device for speed.

    Raises
    ------
    PlanError
        If slots, positions, shapes or types do not fit. Nothing is written then.
    """
    destination = by_slot(pool)
    spans = copies if isinstance(copies, CopyBatch) else tuple(copies)
    batch = flat_batch(destination, spans, table)
    if batch is None:
        return 0
    if table.cos.device != pool.device:
        table = table.to(pool.device)
    chosen = Backend(backend)
    if chosen is Backend.AUTO:
        chosen = Backend.TRITON if pool.is_cuda else Backend.TORCH
    _copier(chosen)(destination, _on_device(batch, pool.device), table)
    return len(batch)


def _copier(backend: Backend) -> Callable[[torch.Tensor, CopyBatch, RotaryTable], None]:
    if backend is Backend.TORCH:
        return torch_copy.copy_batch
    # Imported where it is used: machines without a GPU need no Triton.
    from semblend.kv import triton_kernels

    return triton_kernels.copy_batch


def _on_device(batch: CopyBatch, device: torch.device) -> CopyBatch:
    """The batch with its sources on `device`; from elsewhere only the needed rows travel."""
    if all(source.device == device for source in batch.sources):
        return batch
    sources, slots = list(batch.sources), batch.source_slots.copy()
    for number, source in enumerate(batch.sources):
        if source.device == device:
            continue
        here = batch.source_numbers == number
        rows = slots[here]
        low, high = int(rows.min()), int(rows.max()) + 1
        if high - low <= 2 * rows.size:
            wanted, slots[here] = source[:, :, low:high], rows - low
        else:
            chosen = torch.from_numpy(rows).to(source.device)
            wanted, slots[here] = source.index_select(2, chosen), np.arange(rows.size)
        sources[number] = wanted.to(device, non_blocking=True).contiguous()
    return replace(batch, sources=tuple(sources), source_slots=slots)
