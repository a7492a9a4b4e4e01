"""The start-up proof that the cache's layout matches its strides.

The kernel that copies spans writes K/V into a scratch block. It is read back, every layer and
number, both from where the backend was seen to write and by that kernel. If the two differ from
what was written, strides are not used. This also compiles the kernel before a request needs it.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from semblend.integration.worker.port import KvAccess
from semblend.kv.layer_rotary import Rotary
from semblend.kv.paged_kv import PagedKv
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans

logger = logging.getLogger("semblend.adapter")

_PARTS = (1, 4)
"""One in this many tokens of a stored segment is copied: all of it, or a little."""


def prove_pool(access: KvAccess, table: Rotary) -> None:
    """Stop `access` from using strides that do not hold. Never raises."""
    pool = access.pool
    if pool is None:
        return
    try:
        proven = access.blocks > access.scratch_block and all(
            _comes_back(access, pool, table, part) for part in _PARTS
        )
    except Exception:
        logger.warning("SemBlend could not prove the cache's strides", exc_info=True)
        proven = False
    if not proven:
        logger.warning("SemBlend copies K/V layer by layer: the cache's strides are not proven")
        access.pool = None


@torch.inference_mode()
def _comes_back(access: KvAccess, pool: PagedKv, table: Rotary, part: int) -> bool:
    size, (heads, dim) = access.block_size, access.head_shape
    shape = (access.layer_count, access.parts, part * size, heads, dim)
    generator = torch.Generator().manual_seed(part)
    numbers = torch.randint(1, 64, shape, generator=generator).to(access.dtype)
    segment = numbers.pin_memory() if access.device.type == "cuda" else numbers
    slots = np.arange(size) + access.scratch_block * size
    put = SpanCopy(
        source=segment,
        source_slots=np.arange(size),
        target_slots=slots,
        source_start=0,
        target_start=0,
    )
    copy_spans(pool, [put], table)
    want = segment[:, :, :size]
    got = access.read((access.scratch_block,), 0, size)
    taken = torch.zeros_like(got)
    take = SpanCopy(
        source=pool,
        source_slots=slots,
        target_slots=np.arange(size),
        source_start=0,
        target_start=0,
    )
    copy_spans(taken, [take], table)
    return torch.equal(got.cpu(), want) and torch.equal(taken.cpu(), want)
