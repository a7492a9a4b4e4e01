"""Chooses whole blocks by score. Never single tokens: each run re-reads the K/V before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semblend.core.plan import Hole, Span
from semblend.planning.policies.base import RecomputeRequest, Scores


def blocks_of(spans: Sequence[Span], size: int) -> list[Hole]:
    """Split the spans into blocks of `size` tokens. A span's last block may be shorter."""
    return [
        Hole(start, min(start + size, span.target_end))
        for span in spans
        for start in range(span.target_start, span.target_end, size)
    ]


def best_blocks(
    request: RecomputeRequest, spans: Sequence[Span], scores: Scores, *, budget: float, size: int
) -> list[Hole]:
    """The blocks of `spans` with the highest total score, within `budget` tokens.

    Blocks already taken cost nothing and gain nothing. Ties are broken by position, so a larger
    budget always extends a smaller one's choice.
    """
    open_ = np.ones(len(request.tokens), dtype=np.bool_)
    for run in request.taken:
        open_[run.start : run.end] = False
    blocks = blocks_of(spans, size)
    mass = [float(scores[b.start : b.end][open_[b.start : b.end]].sum()) for b in blocks]
    chosen: list[Hole] = []
    left = budget
    for index in sorted(range(len(blocks)), key=lambda i: (-mass[i], i)):
        cost = int(open_[blocks[index].start : blocks[index].end].sum())
        if cost == 0:
            continue
        if cost > left:
            break
        left -= cost
        chosen.append(blocks[index])
    return chosen
