"""Shifts reused K/V to its new depth in the prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from semblend.core.plan import Hole
from semblend.planning.policies.base import (
    Probe,
    RecomputePolicy,
    RecomputeRequest,
    register_policy,
)
from semblend.planning.policies.none import NoRecompute


@register_policy("depth_shift")
@dataclass(frozen=True, slots=True)
class DepthShift(RecomputePolicy):
    """`policy`, over K/V of moved passages shifted to their new depth by the model's own means.

    K and V encode how much text came before them. A passage from the top of its document, placed
    deep in a prompt, draws too much attention. The shift costs no recompute. It needs the table
    that `semblend certify` measures and ships with the certificate (docs/quality.md).
    """

    grid: ClassVar[tuple[str, ...]] = (
        "depth_shift(none)",
        "depth_shift(budget(edit_dependents(1, 8) + span_head(8), 0.15))",
        *(
            "depth_shift(budget(edit_dependents(1, 8) + span_head(8) "
            f"+ query_attention({ratio}, 16, 'displaced'), 0.15))"
            for ratio in (0.05, 0.1)
        ),
        *(
            "depth_shift(budget(span_dependents(2, 8) "
            f"+ query_attention({ratio}, 16, 'displaced'), 0.15, 0.4))"
            for ratio in (0.05, 0.1)
        ),
    )
    ordered: ClassVar[bool] = False

    candidates: ClassVar[tuple[str, ...]] = grid[-2:]

    policy: RecomputePolicy = field(default_factory=NoRecompute)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, RecomputePolicy):
            raise TypeError(f"expected a policy, got {self.policy!r}")

    @cached_property
    def shifts_depth(self) -> bool:
        return True

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        return self.policy.runs(request)

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The policy's probed runs. Its probe sees the shifted K/V."""
        return self.policy.probed_runs(request, probe)
