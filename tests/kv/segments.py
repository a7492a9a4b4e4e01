"""Small segments for the tests of tiers: contents follow from their number."""

from __future__ import annotations

import numpy as np
import torch

from semblend.kv.segments import Segment, SegmentKey
from semblend.kv.tiers.segment_file import HEADER_BYTES

NAMESPACE = b"test-namespace-1"
TOKEN_BYTES = 2 * 2 * 1 * 4 * 2
"""Two layers, K and V, one head of four bf16 numbers."""


def key_of(number: int, tokens: int = 4) -> SegmentKey:
    """The key of segment `number`."""
    ids = np.arange(number * 1000, number * 1000 + tokens, dtype=np.int32)
    return SegmentKey.of(NAMESPACE, ids, 0, tokens)


def segment_of(number: int, tokens: int = 4, **changes: object) -> Segment:
    """Segment `number`: the same contents each time."""
    generator = torch.Generator().manual_seed(number)
    kv = torch.randn(2, 2, tokens, 1, 4, generator=generator).to(torch.bfloat16)
    return Segment(**{"key": key_of(number, tokens), "kv": kv} | changes)


def same_kv(one: Segment, other: Segment) -> bool:
    """Whether two segments hold the same bits."""
    return torch.equal(one.kv.view(torch.int16), other.kv.view(torch.int16))


SEGMENT_BYTES = segment_of(0).nbytes
FILE_BYTES = SEGMENT_BYTES + HEADER_BYTES
