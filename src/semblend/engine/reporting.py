"""The report of one request: what actually happened to each prompt token."""

from __future__ import annotations

import time

from semblend.core.account import Reuse
from semblend.core.plan import CostEstimate, Plan
from semblend.engine.api import RequestReport, StripSegment, TokenSource
from semblend.engine.sequence import Sequence


def strip_of(
    prompt_tokens: int, exact_tokens: int, plan: Plan | None, *, continued_tokens: int = 0
) -> tuple[StripSegment, ...]:
    """The prompt as consecutive runs with one source each."""
    marks: list[StripSegment] = []
    if exact_tokens:
        marks.append(StripSegment(start=0, end=exact_tokens, source=TokenSource.EXACT))
    if continued_tokens:
        end = exact_tokens + continued_tokens
        marks.append(StripSegment(start=exact_tokens, end=end, source=TokenSource.CONTINUED))
    if plan is not None:
        for span in plan.copies:
            marks.append(
                StripSegment(
                    start=span.target_start,
                    end=span.target_end,
                    source=TokenSource.REUSED,
                    donor_id=span.donor_id,
                )
            )
        for run in plan.recompute:
            marks.append(StripSegment(start=run.start, end=run.end, source=TokenSource.RECOMPUTED))
    strip: list[StripSegment] = []
    position = 0
    for mark in sorted(marks, key=lambda segment: segment.start):
        if mark.start > position:
            strip.append(StripSegment(start=position, end=mark.start, source=TokenSource.COMPUTED))
        strip.append(mark)
        position = mark.end
    if position < prompt_tokens:
        strip.append(StripSegment(start=position, end=prompt_tokens, source=TokenSource.COMPUTED))
    return tuple(strip)


def report_of(sequence: Sequence, *, certified: bool) -> RequestReport:
    """The request's report as of now."""
    plan, account, now = sequence.plan, sequence.account, time.perf_counter()
    reused = 0 if plan is None else plan.reused_tokens
    planned = sequence.planned if plan is None else plan
    return RequestReport(
        request_id=sequence.request.request_id,
        outcome=account.outcome(None if plan is None else Reuse.of(plan)),
        prompt_tokens=sequence.prompt_tokens,
        exact_tokens=sequence.exact_tokens,
        continued_tokens=sequence.continued_tokens,
        reused_tokens=reused,
        recomputed_tokens=0 if plan is None else plan.recomputed_tokens,
        computed_tokens=sequence.prompt_tokens - sequence.placed_tokens - reused,
        approximate=sequence.exact_until < sequence.prompt_tokens,
        donor_ids=() if plan is None else plan.donor_ids,
        similarity=sequence.similarity,
        policy=sequence.policy if plan is not None else "none",
        certified=certified and sequence.has_borrowed and sequence.request.policy is None,
        reason=account.reason,
        detail=account.detail,
        strip=strip_of(
            sequence.prompt_tokens,
            sequence.exact_tokens,
            plan,
            continued_tokens=sequence.continued_tokens,
        ),
        found=() if plan is not None else sequence.found,
        queue_ms=_ms(sequence.submitted_at, sequence.admitted_at or now),
        lookup_ms=sequence.lookup_ms,
        prefill_ms=_ms(sequence.admitted_at, sequence.prefilled_at),
        ttft_ms=_ms(sequence.submitted_at, sequence.first_token_at),
        total_ms=_ms(sequence.submitted_at, now),
        output_tokens=len(sequence.output_ids),
        cost=CostEstimate() if planned is None else planned.cost,
        tokens_by_donor=()
        if planned is None or not (reused or sequence.found)
        else planned.tokens_by_donor,
    )


def _ms(start: float, end: float) -> float:
    """Milliseconds between two moments; 0 if either is missing."""
    return (end - start) * 1e3 if start and end else 0.0
