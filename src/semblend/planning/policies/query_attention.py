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
from semblend.planning.policies.openings import opening_of

AMONG = ("all", "edited", "displaced", "changed")
NEAR_TOKENS = 256
"""A shift small enough to come from a different instruction before a document."""


@register_policy("query_attention")
@dataclass(frozen=True, slots=True)
class QueryAttention(RecomputePolicy):
    """`ratio` of the reusable tokens, in blocks the tail's queries attend to most.

    The tail runs once over the reused K/V, the best blocks are recomputed, and the tail runs again.
    `among` says which spans compete:

    - `all`;
    - `edited`: those after an edit;
    - `displaced`: those after text other than an instruction;
    - `changed`: both, and moved spans that start inside a paragraph. What is left out is a whole
      document after another instruction. An "I" or "he" far behind a changed name means somebody
      else now, and no rule about sentences finds all of them. The question does.

    If none compete, no probe runs. Query-aware choice is the idea of A3, ProphetKV and InfoFlow KV
    (arXiv 2511.17560, 2602.02579, 2603.05353).
    """

    grid: ClassVar[tuple[str, ...]] = tuple(f"query_attention({r})" for r in (0.05, 0.1, 0.2))

    ratio: float = 0.1
    block: int = 16
    among: str = "all"

    def __post_init__(self) -> None:
        share(self.ratio, of="query_attention: ratio")
        count(self.block, of="query_attention: block")
        if self.among not in AMONG:
            raise SettingsError(
                f"query_attention: among must be one of {', '.join(map(repr, AMONG))}, "
                f"got {self.among!r}"
            )

    @cached_property
    def probes(self) -> frozenset[ProbeKind]:
        return frozenset({ProbeKind.TAIL_ATTENTION})

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Nothing before the tail has run."""
        return []

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The blocks with the most attention mass."""
        spans = [span for span in request.spans if self._competes(request, span)]
        budget = self.ratio * reusable_tokens(request.spans)
        if not spans or budget < 1:
            return []
        return best_blocks(request, spans, probe.tail_attention(), budget=budget, size=self.block)

    def _competes(self, request: RecomputeRequest, span: Span) -> bool:
        if span.kind is SpanKind.PREFIX:
            return False
        if self.among == "edited":
            return span.kind is SpanKind.BEHIND_EDIT
        if self.among == "changed" and not _is_whole(request, span):
            return True
        return self.among == "all" or is_displaced(span)


def _is_whole(request: RecomputeRequest, span: Span) -> bool:
    """Whether a span starts a paragraph or turn, so that it may be all of a document."""
    return span.kind is SpanKind.MOVED and opening_of(request, span) is not None


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
