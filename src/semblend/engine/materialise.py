"""Putting a plan's spans in place: donor K/V into the request's own pages, K re-rotated."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.pages import PageTable
from semblend.engine.pool import PagedPool
from semblend.kv.rotary import RotaryTable
from semblend.kv.transfer import SpanCopy, copy_spans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorPiece:
    """K/V of donor positions [start, start + tokens) as one tensor."""

    start: int
    kv: torch.Tensor
    """[layers, 2, tokens, kv_heads, head_dim], K rotated to the donor's positions."""

    @property
    def end(self) -> int:
        """First donor position after the piece."""
        return self.start + self.kv.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorKv:
    """A donor's tokens and K/V, in order, while somebody holds a lease on it."""

    tokens: TokenArray
    pieces: tuple[DonorPiece, ...]


class DonorSource(Protocol):
    """Where donor K/V is leased from."""

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[DonorKv]:
        """K/V that covers donor positions [start, end), kept from eviction meanwhile.

        Raises
        ------
        DonorError
            If the donor is gone.
        StorageError
            If its K/V cannot be read, or fails its checksum.
        """
        ...


def load_spans(
    plan: Plan,
    tokens: TokenArray,
    *,
    table: PageTable,
    pool: PagedPool,
    rotary: RotaryTable,
    donors: DonorSource,
) -> int:
    """Copy everything a plan copies; returns the number of tokens put in place.

    Tokens are compared once more against the donor that is really there: between
    planning and loading, an id may have come to mean something else.
    """
    copied = 0
    for donor_id in plan.donor_ids:
        spans = [span for span in plan.copies if span.donor_id == donor_id]
        if not spans:
            continue
        first = min(span.donor_start for span in spans)
        last = max(span.donor_end for span in spans)
        with donors.lease(donor_id, first, last) as donor:
            copies: list[SpanCopy] = []
            for span in spans:
                theirs = donor.tokens[span.donor_start : span.donor_end]
                if not np.array_equal(theirs, tokens[span.target_start : span.target_end]):
                    raise DonorError(f"donor {donor_id!r} does not hold the planned tokens")
                for piece in donor.pieces:
                    start = max(span.donor_start, piece.start)
                    end = min(span.donor_end, piece.end)
                    if start < end:
                        target = start + span.delta
                        copies.append(
                            SpanCopy(
                                source=piece.kv,
                                source_slots=np.arange(start - piece.start, end - piece.start),
                                target_slots=table.slots(target, target + end - start),
                                source_start=start,
                                target_start=target,
                            )
                        )
            copied += copy_spans(pool.data, copies, rotary)
    if copied != plan.reused_tokens:
        raise DonorError(f"{plan.reused_tokens} tokens planned, donors supplied {copied}")
    return copied
