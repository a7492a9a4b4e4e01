"""Applies a policy to spans: before loading, and again once they are in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from semblend.core.plan import Hole, Plan, Span, merge_holes
from semblend.core.tokens import TokenArray
from semblend.planning.boundaries import Boundaries
from semblend.planning.overlaps import parts_inside
from semblend.planning.policies.base import Probe, RecomputePolicy, RecomputeRequest


def inside_spans(runs: Iterable[Hole], spans: Sequence[Span]) -> tuple[Hole, ...]:
    """Merge runs and clip them to the spans. Everything outside is computed anyway."""
    merged = merge_holes(runs)
    return merge_holes(
        part for span in spans for part in parts_inside(merged, span.target_start, span.target_end)
    )


def with_policy(
    plan: Plan, tokens: TokenArray, policy: RecomputePolicy, boundaries: Boundaries | None = None
) -> Plan:
    """The same spans under another policy, as far as it can tell without a probe."""
    runs = policy.runs(
        RecomputeRequest(tokens=tokens, spans=plan.spans, end=plan.end, boundaries=boundaries)
    )
    return replace(plan, recompute=inside_spans(runs, plan.spans), policy=policy.spec)


def probed(
    plan: Plan,
    tokens: TokenArray,
    policy: RecomputePolicy,
    probe: Probe,
    boundaries: Boundaries | None = None,
) -> Plan:
    """The plan plus the runs a dynamic policy adds once the spans are in place."""
    request = RecomputeRequest(
        tokens=tokens,
        spans=plan.spans,
        end=plan.end,
        boundaries=boundaries,
        taken=plan.recompute,
    )
    runs = (*plan.recompute, *policy.probed_runs(request, probe))
    return replace(plan, recompute=inside_spans(runs, plan.spans))


def first_added(before: Plan, after: Plan) -> int:
    """The first token computed in one plan and copied in the other; the end if there is none."""
    added = np.zeros(before.end, dtype=bool)
    for hole in after.holes:
        added[hole.start : hole.end] = True
    for hole in before.holes:
        added[hole.start : hole.end] = False
    return int(added.argmax()) if added.any() else before.prompt_tokens


def left_to_compute(before: Plan, after: Plan) -> tuple[Hole, ...]:
    """What is computed after a probe's pass over one plan, now that its policy made it another.

    The pass computed holes and tail. All of it stands up to the first token that the policy added:
    nothing before that depends on what it added.
    """
    first = first_added(before, after)
    runs = plan_runs(after)
    return tuple(Hole(max(run.start, first), run.end) for run in runs if run.end > first)


def plan_runs(plan: Plan) -> tuple[Hole, ...]:
    """What remains to compute once a plan's copies are in place: every hole, and the tail."""
    return merge_holes((*plan.gaps, *plan.recompute, Hole(plan.end, plan.prompt_tokens)))
