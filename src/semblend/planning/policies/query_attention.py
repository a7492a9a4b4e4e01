"""Recompute the blocks that the question looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semblend.core.plan import Hole, SpanKind
from semblend.planning.policies.base import (
    Probe,
    RecomputePolicy,
    RecomputeRequest,
    count,
    register_policy,
    reusable_tokens,
    share,
)
from semblend.planning.policies.blocks import best_blocks


@register_policy("query_attention")
@dataclass(frozen=True, slots=True)
class QueryAttention(RecomputePolicy):
    """`ratio` of the reusable tokens, in blocks the tail's queries attend to most.

    The tail runs once over the borrowed K/V; the best blocks are recomputed and the tail
    runs again. With `edited`, only blocks behind edits compete. Query-aware choice is the idea
    of A3, ProphetKV and InfoFlow KV (arXiv 2511.17560, 2602.02579, 2603.05353).
    """

    grid: ClassVar[tuple[str, ...]] = tuple(f"query_attention({r})" for r in (0.05, 0.1, 0.2))

    ratio: float = 0.1
    block: int = 16
    edited: bool = False

    def __post_init__(self) -> None:
        share(self.ratio, of="query_attention: ratio")
        count(self.block, of="query_attention: block")

    @property
    def dynamic(self) -> bool:
        """Always."""
        return True

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Nothing before the tail was seen."""
        return []

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The blocks with the most attention mass."""
        wanted = (SpanKind.BEHIND_EDIT,) if self.edited else (SpanKind.BEHIND_EDIT, SpanKind.MOVED)
        spans = [span for span in request.spans if span.kind in wanted]
        budget = self.ratio * reusable_tokens(request.spans)
        if not spans or budget < 1:
            return []
        return best_blocks(request, spans, probe.tail_attention(), budget=budget, size=self.block)
