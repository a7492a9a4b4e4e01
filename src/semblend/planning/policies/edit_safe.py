"""Recomputes everything after an edit: the cautious default without a certificate."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, SpanKind
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy


@register_policy("edit_safe")
@dataclass(frozen=True, slots=True)
class EditSafe(RecomputePolicy):
    """Whole spans after an edit; the first `head` tokens of moved ones.

    After an edit, no fixed head is safe: with g tokens between the changed word and what refers to
    it, recomputing fewer than g tokens gained nothing (docs/concepts.md).
    """

    head: int = 8

    def __post_init__(self) -> None:
        if self.head < 1:
            raise SettingsError(f"edit_safe: head must be 1 or more, got {self.head}")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """All of the edited spans, the heads of moved spans, nothing of an exact prefix."""
        runs: list[Hole] = []
        for span in request.spans:
            if span.kind is SpanKind.BEHIND_EDIT:
                runs.append(Hole(span.target_start, span.target_end))
            elif span.kind is SpanKind.MOVED:
                end = min(span.target_end, span.target_start + self.head)
                runs.append(Hole(span.target_start, end))
        return runs
