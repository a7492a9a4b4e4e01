"""Recomputes the blocks that the question attends to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, Span, SpanKind
from semblend.planning.policies.base import (
    Probe,
    ProbeKind,
    RecomputePolicy,
    RecomputeRequest,
    count,
    register_policy,
    reusable_tokens,
    share,
)
from semblend.planning.policies.block_scores import best_blocks

NEAR_TOKENS = 256
"""A shift small enough to come from a different instruction before a document."""


@register_policy("query_attention")
@dataclass(frozen=True, slots=True)
class QueryAttention(RecomputePolicy):
    """`ratio` of the reusable tokens, in blocks the tail's queries attend to most.

    The tail runs once over the reused K/V, the best blocks are recomputed, and the tail runs again.
    `among` says which spans compete: all, those after edits, or displaced ones. If there are none,
    no probe runs. Query-aware choice is the idea of A3, ProphetKV and InfoFlow KV (arXiv
    2511.17560, 2602.02579, 2603.05353).
    """

    grid: ClassVar[tuple[str, ...]] = tuple(f"query_attention({r})" for r in (0.05, 0.1, 0.2))

    ratio: float = 0.1
    block: int = 16
    among: str = "all"

    def __post_init__(self) -> None:
        share(self.ratio, of="query_attention: ratio")
        count(self.block, of="query_attention: block")
        if self.among not in ("all", "edited", "displaced"):
            raise SettingsError(
                f"query_attention: among must be 'all', 'edited' or 'displaced', got {self.among!r}"
            )

    @cached_property
    def probes(self) -> frozenset[ProbeKind]:
        return frozenset({ProbeKind.TAIL_ATTENTION})

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Nothing before the tail has run."""
        return []

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The blocks with the most attention mass."""
        spans = [span for span in request.spans if self._competes(span)]
        budget = self.ratio * reusable_tokens(request.spans)
        if not spans or budget < 1:
            return []
        return best_blocks(request, spans, probe.tail_attention(), budget=budget, size=self.block)

    def _competes(self, span: Span) -> bool:
        if span.kind is SpanKind.PREFIX:
            return False
        if self.among == "edited":
            return span.kind is SpanKind.BEHIND_EDIT
        return self.among == "all" or is_displaced(span)


def is_displaced(span: Span) -> bool:
    """Whether the span follows text other than an instruction, in the donor or here.

    A document after a different instruction has almost the same context as before, and so does text
    after an edit in it. A passage from elsewhere does not, wherever it starts.
    """
    if abs(span.target_start - span.donor_start) > NEAR_TOKENS:
        return True
    if span.kind is SpanKind.BEHIND_EDIT:
        return False
    return max(span.target_start, span.donor_start) > NEAR_TOKENS
