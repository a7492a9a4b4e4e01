"""Recomputes what may depend on the text before a span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semblend.core.plan import Hole, Span, SpanKind
from semblend.planning.policies.base import (
    RecomputePolicy,
    RecomputeRequest,
    count,
    register_policy,
)
from semblend.planning.policies.openings import opening_end, opening_of


@register_policy("span_dependents")
@dataclass(frozen=True, slots=True)
class SpanDependents(RecomputePolicy):
    """From every span's start to `sentences` sure sentence ends, and `margin` tokens more.

    Token ids do not show whether text depends on what changed before it, so moved spans and spans
    after an edit are treated much alike. Each is recomputed up to where sentences certainly end
    (`planning/sure_ends.py`), at most `limit` tokens. Two kinds of moved spans cost less or more:

    - One that starts a paragraph, after a whole sentence both in the donor and here, is recomputed
      `margin` tokens into it.
    - One that starts a turn is recomputed for one sentence more, at most `turn` tokens: what stands
      first is understood by the instruction before it, and there is one such span per request.

    One that starts after an empty line without a whole sentence (a table, code) is recomputed at
    most `lines` tokens.
    """

    grid: ClassVar[tuple[str, ...]] = (
        "span_dependents(1, 8)",
        "span_dependents(2, 8)",
        "span_dependents(3, 8)",
    )

    sentences: int = 2
    margin: int = 8
    limit: int = 256
    lines: int = 64
    turn: int = 96

    def __post_init__(self) -> None:
        count(self.sentences, of="span_dependents: sentences")
        count(self.margin, of="span_dependents: margin")
        count(self.limit, of="span_dependents: limit")
        count(self.lines, of="span_dependents: lines")
        count(self.turn, of="span_dependents: turn")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """The head of every span but an exact prefix."""
        return [
            Hole(span.target_start, min(span.target_end, self._stop(request, span)))
            for span in request.spans
            if span.kind is not SpanKind.PREFIX
        ]

    def _stop(self, request: RecomputeRequest, span: Span) -> int:
        start, boundaries = span.target_start, request.boundaries
        if boundaries is None:
            return start + self.limit
        tokens, most, sentences = request.tokens, self.limit, self.sentences
        if span.kind is SpanKind.MOVED:
            opening = opening_of(request, span)
            if opening is not None and not opening.starts_turn:
                return opening.at + self.margin
            if opening is not None:
                start, most, sentences = opening.at, self.turn, self.sentences + 1
            elif boundaries.has_blank_line(tokens, start, opening_end(span)):
                most = min(self.limit, self.lines)
        end = min(start + most, span.target_end)
        ends = boundaries.sure_ends(tokens, start, end, wanted=sentences)
        if len(ends) < sentences:
            return start + most
        return min(ends[-1] + self.margin, start + most)
