"""Random span copies: several sources, scattered pages, spans that move and spans that stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from semblend.kv.layout import PagedLayout
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy

LIMITS = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
"""Largest error of numbers up to about 4: rounding to the type, plus fp32 arithmetic."""

ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCase:
    """A pool with something in it, spans to copy into it, and the rows."""

    pool: torch.Tensor
    copies: tuple[SpanCopy, ...]
    table: RotaryTable


def make_case(
    *,
    seed: int,
    dtype: torch.dtype,
    pairing: Pairing,
    head_dim: int,
    rotary_dim: int,
    kv_heads: int,
    layers: int,
    page_size: int,
    lengths: list[int],
) -> SpanCase:
    """A case with one span for each length; slots never collide."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    pages = -(-sum(lengths) // page_size) + 2
    layout = PagedLayout(
        layers=layers, pages=pages, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim
    )
    spec = RotarySpec(
        head_dim=head_dim, rotary_dim=rotary_dim, theta=1e3, max_positions=ROWS, pairing=pairing
    )
    sizes = (layers, 2, ROWS, kv_heads, head_dim)
    segments = [torch.randn(sizes, generator=generator).clamp(-3, 3).to(dtype) for _ in range(2)]
    for segment in segments:  # A rotation by nothing would lose the sign of zero.
        segment[torch.rand(sizes, generator=generator) < 0.2] = -0.0
    order = rng.permutation(pages)
    slots = layout.token_slots(order, 0, sum(lengths))
    if rng.integers(0, 2):
        slots = rng.permutation(layout.slots)[: sum(lengths)]
    spans, at = [], 0
    for length in lengths:
        row, source_start, target_start = rng.integers(0, ROWS - length + 1, 3).tolist()
        if rng.integers(0, 3) == 0:
            target_start = source_start
        spans.append(
            SpanCopy(
                source=segments[int(rng.integers(0, 2))],
                source_slots=np.arange(row, row + length),
                target_slots=slots[at : at + length],
                source_start=source_start,
                target_start=target_start,
            )
        )
        at += length
    pool = torch.randn(layout.shape, generator=generator).to(dtype)
    return SpanCase(pool=pool, copies=tuple(spans), table=RotaryTable.from_spec(spec))


def small_case(seed: int, lengths: list[int]) -> SpanCase:
    """One head of four numbers, all of them rotated, in three layers."""
    return make_case(
        seed=seed,
        dtype=torch.float32,
        pairing=Pairing.NEOX,
        head_dim=4,
        rotary_dim=4,
        kv_heads=1,
        layers=3,
        page_size=4,
        lengths=lengths,
    )
