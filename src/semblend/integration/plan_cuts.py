"""Cuts plans to what a mode may supply and an engine can carry out in one step."""

from __future__ import annotations

from dataclasses import replace

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan, Span


def ending_at(plan: Plan, end: int) -> Plan | None:
    """The part of a plan before target position `end`; None if no span is left.

    Anything after that end is dropped too, with its recompute runs.
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
    """Cut the plan so that its pass computes at most `budget_tokens`; None if nothing is left.

    It is cut at the end of a copy: a region that ended in a hole would compute tokens that
    the engine's own forward computes just as well. The end is then rounded down to a whole
    page.
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


def exact_part(plan: Plan, block_size: int) -> Plan:
    """A plan's identical prefix in whole blocks; it is exact, so it needs no certificate."""
    allowed = (None, DeclineReason.NO_CERTIFICATE, DeclineReason.POLICY_DECLINED)
    first = plan.spans[0] if plan.spans else None
    if plan.reason not in allowed or first is None or not first.is_exact:
        return plan if plan.reason else plan.declined(DeclineReason.NO_MATCH, "no exact prefix")
    return _leading(plan, (first,), block_size)


def leading_part(plan: Plan, block_size: int) -> Plan:
    """What covers the prompt's start without a hole, in whole blocks."""
    if not plan.executable:
        return plan
    reach, leading = plan.exact_tokens, []
    for span in plan.copies:
        if span.target_start != reach:
            break
        leading.append(span)
        reach = span.target_end
    return _leading(plan, tuple(leading), block_size)


def _leading(plan: Plan, spans: tuple[Span, ...], block_size: int) -> Plan:
    if spans and spans[0].target_start == plan.exact_tokens:
        reach = min(spans[-1].target_end, plan.prompt_tokens - 1)
        end = reach // block_size * block_size
        clipped = (span.clipped(plan.exact_tokens, end) for span in spans)
        kept = tuple(span for span in clipped if span is not None)
        if kept:
            return replace(plan, spans=kept, recompute=(), end=end, reason=None, detail="")
    return plan.declined(DeclineReason.NO_MATCH, "nothing covers the start of the prompt")
