"""Recomputes what refers back to an edit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from semblend.core.plan import Hole, SpanKind
from semblend.planning.boundaries import Flags
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

PROBED_LAYERS = 3
ATTENTION_BLOCK = 16


@register_policy("edit_dependents")
@dataclass(frozen=True, slots=True)
class EditDependents(RecomputePolicy):
    """After every edit: the rest of its sentence and `margin` tokens more.

    `sentences` is the number of sentence ends to pass; 0 continues to the end of the paragraph. If
    there is no boundary within `limit` tokens, it stops at the limit. With a `referring` share, it
    also recomputes the blocks that attend most to edited places, at any distance. Moved spans are
    left to other policies: combine it with `span_head`.
    """

    grid: ClassVar[tuple[str, ...]] = (
        "edit_dependents(1, 1)",
        "edit_dependents(1, 8)",
        "edit_dependents(2, 8)",
        "edit_dependents(0, 8)",
        "edit_dependents(1, 8, 96, 0.05)",
    )
    ordered: ClassVar[bool] = False

    sentences: int = 1
    margin: int = 8
    limit: int = 96
    referring: float = 0.0

    def __post_init__(self) -> None:
        count(self.sentences, of="edit_dependents: sentences", least=0)
        count(self.margin, of="edit_dependents: margin")
        count(self.limit, of="edit_dependents: limit")
        share(self.referring, of="edit_dependents: referring")

    @cached_property
    def probes(self) -> frozenset[ProbeKind]:
        """Attention to edited places, if `referring` is set."""
        return frozenset({ProbeKind.EDIT_ATTENTION} if self.referring > 0 else ())

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """From each edit to its semantic boundary, at least the margin."""
        ends = self._ends(request)
        runs: list[Hole] = []
        for span in request.spans:
            if span.kind is SpanKind.BEHIND_EDIT:
                stop = self._boundary(ends, span.target_start) + self.margin
                runs.append(Hole(span.target_start, min(span.target_end, stop)))
        return runs

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The blocks after edits whose tokens attend to edited places."""
        spans = [span for span in request.spans if span.kind is SpanKind.BEHIND_EDIT]
        budget = self.referring * reusable_tokens(request.spans)
        if not spans or budget < 1:
            return []
        scores = probe.edit_attention(PROBED_LAYERS)
        return best_blocks(request, spans, scores, budget=budget, size=ATTENTION_BLOCK)

    def _ends(self, request: RecomputeRequest) -> Flags | None:
        if request.boundaries is None:
            return None
        if self.sentences:
            return request.boundaries.sentence_ends(request.tokens)
        return request.boundaries.paragraph_ends(request.tokens)

    def _boundary(self, ends: Flags | None, start: int) -> int:
        """First position after the boundary, or the limit if none is near."""
        if ends is None:
            return start + self.limit
        nearest = np.flatnonzero(ends[start : start + self.limit])
        wanted = max(1, self.sentences)
        return start + (int(nearest[wanted - 1]) + 1 if len(nearest) >= wanted else self.limit)
