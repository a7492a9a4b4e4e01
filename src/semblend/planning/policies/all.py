"""The baseline that recomputes everything: a cold prefill in another way."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.plan import Hole
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy


@register_policy("all")
@dataclass(frozen=True, slots=True)
class RecomputeAll(RecomputePolicy):
    """Every token of every span is computed: must equal cold, so it is every engine's oracle."""

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        return [Hole(span.target_start, span.target_end) for span in request.spans]
