"""Applies a policy to spans: before loading, and again once they are in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
