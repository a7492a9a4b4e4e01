"""What a probing policy costs, foreseen before anything is loaded.

A probe is a pass of its own over holes and tail. What the policy then adds is computed in a second
pass, and with it every hole behind it and the tail. How much that is depends on the policy's
budget; where it is depends on the probe. The estimate takes the budget, spent at the front.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.planning.boundaries import Boundaries
from semblend.planning.cost import CostModel
from semblend.planning.policies.base import RecomputePolicy, Scores
from semblend.planning.recompute import left_to_compute, probed


@dataclass(slots=True)
class _EvenProbe:
    """Scores every token alike, so that a policy spends its budget at the first chance."""

    tokens: int
    asked: bool = field(default=False, init=False)

    def tail_attention(self) -> Scores:
        return self._even()

    def deviation(self, layers: int) -> Scores:
        return self._even()

    def edit_attention(self, layers: int) -> Scores:
        return self._even()

    def _even(self) -> Scores:
        self.asked = True
        return np.zeros(self.tokens, dtype=np.float64)


def with_probe_cost(
    plan: Plan,
    tokens: TokenArray,
    policy: RecomputePolicy,
    *,
    cost: CostModel,
    boundaries: Boundaries | None = None,
) -> Plan:
    """The plan, whose estimate counts the second pass of a policy that probes."""
    if not policy.dynamic or plan.first_approximate_token is None:
        return plan
    probe = _EvenProbe(plan.prompt_tokens)
    foreseen = probed(plan, tokens, policy, probe, boundaries)
    again = left_to_compute(plan, foreseen) if probe.asked else ()
    if not again:
        return plan
    second = (
        cost.pass_fixed
        + cost.span_fixed * (len(again) - 1)  # what several holes take is a part of that
        + sum(cost.compute(run.start, run.end) for run in again)
    )
    return replace(plan, cost=replace(plan.cost, planned=plan.cost.planned + second))
