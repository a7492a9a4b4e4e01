"""Cuts of a plan supply less, never other tokens, and end where the engine can go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan, Span, SpanKind
from semblend.integration.plan_cuts import exact_part, leading_part, within_hole_budget

PREFIX = Span(donor_id="d", donor_start=0, target_start=0, length=100, kind=SpanKind.PREFIX)
MOVED = Span(donor_id="e", donor_start=7, target_start=100, length=90)
FAR = Span(donor_id="f", donor_start=40, target_start=250, length=60)


def plan_of(*spans: Span, **changes) -> Plan:
    return Plan(namespace="n", prompt_tokens=400, spans=spans, end=spans[-1].target_end, **changes)


def positions(plan: Plan) -> dict[int, tuple[str, int]]:
    """Where the K/V of each target position comes from."""
    return {
        span.target_start + offset: (span.donor_id, span.donor_start + offset)
        for span in plan.copies
        for offset in range(span.length)
    }


@given(block=st.integers(1, 64))
def test_the_exact_part_is_the_prefix_in_whole_blocks_and_asks_no_certificate(block):
    whole = plan_of(PREFIX, MOVED, FAR)
    for reason in (None, DeclineReason.NO_CERTIFICATE, DeclineReason.POLICY_DECLINED):
        cut = exact_part(whole if reason is None else whole.declined(reason), block)
        assert cut.executable
        assert (cut.end, cut.holes) == (100 // block * block, ())
        assert positions(cut).items() <= positions(plan_of(PREFIX)).items()


@pytest.mark.parametrize("reason", [DeclineReason.SHORT_PROMPT, DeclineReason.DISABLED])
def test_what_was_declined_for_another_reason_stays_declined(reason):
    assert exact_part(plan_of(PREFIX).declined(reason), 16).reason is reason


def test_without_a_prefix_nothing_is_exact():
    assert exact_part(plan_of(FAR), 16).reason is DeclineReason.NO_MATCH
    assert exact_part(plan_of(PREFIX), 128).reason is DeclineReason.NO_MATCH, "no whole block"


@given(block=st.integers(1, 64))
def test_the_leading_part_ends_before_the_first_hole(block):
    whole = plan_of(PREFIX, MOVED, FAR)
    cut = leading_part(whole, block)
    assert (cut.end, cut.holes) == (190 // block * block, ())
    assert positions(cut).items() <= positions(whole).items()
    assert leading_part(plan_of(FAR), block).reason is DeclineReason.NO_MATCH


@given(budget=st.integers(0, 120), page=st.sampled_from([1, 16]))
def test_a_plan_within_the_budget_is_a_shorter_plan_on_whole_pages(budget, page):
    spans = tuple(
        Span(donor_id="d", donor_start=start, target_start=start + 30, length=70)
        for start in (0, 100, 200, 300)
    )
    plan = Plan(namespace="n", prompt_tokens=500, spans=spans, end=400)
    cut = within_hole_budget(plan, budget, page_size=page)
    if cut is None:
        assert budget < 30
        return
    assert sum(map(len, cut.holes)) <= max(budget, 0)
    assert cut.end <= plan.end
    assert cut == plan or cut.end % page == 0
    assert positions(cut).items() <= positions(plan).items()
