"""Gates: each examines a plan and returns a reason not to offer it, or None.

They run in this order, and the first reason wins. A refused plan keeps its spans as evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.planning.cost import CostModel

Decline: TypeAlias = tuple[DeclineReason, str]
"""Why a plan is not carried out, and in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateContext:
    """What gates may examine besides the plan."""

    settings: Settings
    cost: CostModel
    certified: bool
    uncertified: Decline = (DeclineReason.NO_CERTIFICATE, "this model has no quality certificate")
    """Why it is not certified, if it is not."""
    donates: bool = True
    """Whether the request, computed exactly, would become a donor."""


Gate: TypeAlias = Callable[[Plan, GateContext], Decline | None]


def has_spans(plan: Plan, context: GateContext) -> Decline | None:
    """Refuse if nothing was found."""
    if plan.spans:
        return None
    return DeclineReason.NO_MATCH, f"no identical run of {context.settings.min_span_tokens} tokens"


def something_left(plan: Plan, context: GateContext) -> Decline | None:
    """Refuse if the policy recomputes everything, because that declines the reuse."""
    if plan.reused_tokens:
        return None
    return DeclineReason.POLICY_DECLINED, f"{plan.policy} recomputes every reusable token"


def enough_reuse(plan: Plan, context: GateContext) -> Decline | None:
    """Apply the user's threshold on the reused share of the prompt."""
    ratio = plan.reused_tokens / max(1, plan.prompt_tokens)
    if ratio >= context.settings.min_reuse_ratio:
        return None
    return (
        DeclineReason.BELOW_MIN_REUSE_RATIO,
        f"{ratio:.3f} of the prompt reused, {context.settings.min_reuse_ratio} required",
    )


def worth_it(plan: Plan, context: GateContext) -> Decline | None:
    """Apply the cost model's threshold."""
    share = plan.cost.saved / plan.cost.cold if plan.cost.cold > 0 else 0.0
    if share >= context.cost.min_saved_share and plan.cost.saved > 0:
        return None
    by = " by the times measured at start" if context.cost.measured else ""
    return (
        DeclineReason.NOT_WORTH_IT,
        f"saves {share:.1%} of the prefill{by}, {context.cost.min_saved_share:.1%} is the minimum",
    )


def worth_its_donors(plan: Plan, context: GateContext) -> Decline | None:
    """Refuse if making the request's new tokens approximate costs future requests more."""
    lost = context.cost.donors_lost(plan) if context.donates else 0.0
    if plan.cost.saved >= lost:
        return None
    return (
        DeclineReason.NOT_WORTH_IT,
        f"saves {plan.cost.saved:.0f} now but costs donors worth {lost:.0f} later",
    )


def reuse_allowed(plan: Plan, context: GateContext) -> Decline | None:
    """Refuse if the operator asked for discovery only."""
    if not context.settings.discovery_only:
        return None
    return DeclineReason.DISCOVERY_ONLY, "SEMBLEND_DISCOVERY_ONLY is set"


def certified(plan: Plan, context: GateContext) -> Decline | None:
    """Refuse reuse without measured quality."""
    if context.certified or context.settings.allow_uncertified:
        return None
    return context.uncertified


GATES: tuple[Gate, ...] = (
    has_spans,
    something_left,
    enough_reuse,
    worth_it,
    worth_its_donors,
    reuse_allowed,
    certified,
)


def first_decline(plan: Plan, context: GateContext) -> Decline | None:
    """The first gate's reason against the plan, or None."""
    for gate in GATES:
        decline = gate(plan, context)
        if decline is not None:
            return decline
    return None
