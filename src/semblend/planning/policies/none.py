"""The baseline that recomputes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.plan import Hole
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy


@register_policy("none")
@dataclass(frozen=True, slots=True)
class NoRecompute(RecomputePolicy):
    """Reuse every span whole. The fastest, and the one that leaks edited facts."""

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        return []
