"""Moved spans that start a paragraph or turn."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.plan import Span
from semblend.planning.policies.base import RecomputeRequest

OPENING_TOKENS = 12
"""How far into a span a paragraph or turn may start. What is shared of the text before it (a full
stop, the end of a turn) comes first.
"""


@dataclass(frozen=True, slots=True)
class Opening:
    """A position where a paragraph or turn certainly starts."""

    at: int
    starts_turn: bool


def opening_of(request: RecomputeRequest, span: Span) -> Opening | None:
    """The paragraph or turn that a moved span starts; None if it starts inside one."""
    boundaries, tokens, start = request.boundaries, request.tokens, span.target_start
    if boundaries is None:
        return None
    at = start if span.opens else boundaries.opening(tokens, start, opening_end(span))
    if at is None:
        return None
    if boundaries.starts_turn(tokens, at):
        return Opening(at, starts_turn=True)
    if boundaries.has_words(tokens, start, at):
        return None
    return Opening(at, starts_turn=False)


def opening_end(span: Span) -> int:
    """Where a span's first tokens end."""
    return min(span.target_start + OPENING_TOKENS, span.target_end)
