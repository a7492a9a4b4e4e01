"""Donors held in a plain dictionary, and plans made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Hole, Plan, Span
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute
from semblend.kv.donor_pieces import DonorKv, DonorPiece


@dataclass
class DonorShelf:
    """The simplest donor source there can be."""

    held: dict[str, DonorKv] = field(default_factory=dict)

    @contextmanager
    def lease(self, donor_id: str, start: int, end: int) -> Iterator[DonorKv]:
        if donor_id not in self.held:
            raise DonorError(f"donor {donor_id!r} is gone")
        yield self.held[donor_id]

    def add(self, donor_id: str, tokens: TokenArray, kv: torch.Tensor, piece_tokens: int) -> None:
        pieces = [
            DonorPiece(start=at, kv=kv[:, :, at : at + piece_tokens].contiguous())
            for at in range(0, len(tokens), piece_tokens)
        ]
        self.held[donor_id] = DonorKv(tokens=tokens, pieces=tuple(pieces))


def make_pool(model: LoadedModel, tokens: int = 1024, page_size: int = 8) -> PagedPool:
    return PagedPool(
        model.kv_shape,
        capacity_bytes=model.kv_shape.token_bytes * tokens,
        page_size=page_size,
        device=model.device,
    )


def make_table(pool: PagedPool, tokens: int, seed: int | None = None) -> PageTable:
    """Pages for `tokens`; with a seed, scattered over the pool."""
    pages = pool.allocator.allocate(pool.pages_for(tokens))
    if seed is not None:
        pages = np.random.default_rng(seed).permutation(pages)
    return PageTable(pages=pages, page_size=pool.page_size)


def cold_kv(model: LoadedModel, tokens: TokenArray) -> torch.Tensor:
    """What the engine itself computes for a prompt, [layers, 2, tokens, kv_heads, head_dim]."""
    pool = make_pool(model, len(tokens) + 8)
    table = make_table(pool, len(tokens))
    compute(model, pool, [ComputeRun(tokens=tokens, start=0, table=table)])
    return pool.read(table, 0, len(tokens))


def hand_plan(tokens: TokenArray, spans: list[Span], recompute: list[Hole] | None = None) -> Plan:
    spans = sorted(spans, key=lambda span: span.target_start)
    return Plan(
        namespace="test",
        prompt_tokens=len(tokens),
        spans=tuple(spans),
        recompute=tuple(recompute or ()),
        end=spans[-1].target_end if spans else 0,
    )
