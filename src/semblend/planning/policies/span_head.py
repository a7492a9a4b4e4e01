"""Recomputes a fixed number of tokens at the head of every span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, SpanKind
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy


@register_policy("span_head")
@dataclass(frozen=True, slots=True)
class SpanHead(RecomputePolicy):
    """The first `tokens` of every span but an exact prefix.

    The number is fixed per span, because a share of the span's length leaves too little for short
    spans (docs/concepts.md). The static head is EPIC's idea (arXiv 2410.15332).
    """

    grid: ClassVar[tuple[str, ...]] = tuple(f"span_head({n})" for n in (1, 4, 8, 16, 32))

    tokens: int = 8

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise SettingsError(f"span_head: tokens must be 1 or more, got {self.tokens}")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        return [
            Hole(span.target_start, min(span.target_end, span.target_start + self.tokens))
            for span in request.spans
            if span.kind is not SpanKind.PREFIX
        ]
