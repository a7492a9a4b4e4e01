"""Recomputes both sides of every seam between differently computed K/V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, SpanKind
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy


@register_policy("seams")
@dataclass(frozen=True, slots=True)
class Seams(RecomputePolicy):
    """`tokens` on each side of every span's edges that lie inside the region."""

    grid: ClassVar[tuple[str, ...]] = tuple(f"seams({n})" for n in (4, 16))

    tokens: int = 8

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise SettingsError(f"seams: tokens must be 1 or more, got {self.tokens}")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Head and tail of each span. The head of an exact prefix has no seam."""
        runs: list[Hole] = []
        for span in request.spans:
            if span.kind is not SpanKind.PREFIX:
                end = min(span.target_end, span.target_start + self.tokens)
                runs.append(Hole(span.target_start, end))
            start = max(span.target_start, span.target_end - self.tokens)
            runs.append(Hole(start, span.target_end))
        return runs
