"""Cutting plans to what an engine can carry out in one step."""

from __future__ import annotations

from dataclasses import replace

from semblend.core.plan import Hole, Plan


def ending_at(plan: Plan, end: int) -> Plan | None:
    """The part of a plan in front of target position `end`; None if no span is left.

    Also the part behind a longer region's end is dropped with its recompute runs.
    """
    spans = (span.clipped(plan.exact_tokens, end) for span in plan.spans)
    kept = tuple(span for span in spans if span is not None)
    if not kept:
        return None
    recompute = tuple(
        Hole(run.start, min(run.end, end)) for run in plan.recompute if run.start < end
    )
    return replace(plan, spans=kept, recompute=recompute, end=end)


def within_hole_budget(plan: Plan, budget_tokens: int, *, page_size: int = 1) -> Plan | None:
    """The plan cut so that at most `budget_tokens` are computed in its pass, or None.

    It is cut at the end of a copy: a region that ended in a hole would compute tokens
    that the engine's own forward computes just as well. The end is then brought down to a
    whole page.
    """
    if sum(map(len, plan.holes)) <= budget_tokens:
        return plan
    end, used = 0, 0
    holes = list(plan.holes)
    for copy in plan.copies:
        while holes and holes[0].start < copy.target_start:
            used += len(holes.pop(0))
        if used > budget_tokens:
            break
        end = copy.target_end
    return ending_at(plan, end // page_size * page_size)
