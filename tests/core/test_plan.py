"""Plans are values whose parts always add up."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError, SerialisationError
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Hole, Plan, SimilarRegion, Span, SpanKind, merge_holes


@st.composite
def plans(draw):
    """Any valid plan, built from cuts of the prompt."""
    size = draw(st.integers(1, 400))
    end = draw(st.integers(0, size - 1))
    exact = draw(st.integers(0, end))
    cuts = sorted(draw(st.sets(st.integers(exact, end), max_size=12))) if end else []
    spans = []
    for low, high in zip(cuts[::2], cuts[1::2], strict=False):
        spans.append(
            Span(
                donor_id=draw(st.sampled_from("abc")),
                donor_start=draw(st.integers(0, 1000)),
                target_start=low,
                length=high - low,
                kind=draw(st.sampled_from(SpanKind)),
            )
        )
    recompute = []
    for span in spans:
        if draw(st.booleans()):
            low = draw(st.integers(span.target_start, span.target_end - 1))
            recompute.append(Hole(low, draw(st.integers(low + 1, span.target_end))))
    return Plan(
        namespace="n",
        prompt_tokens=size,
        spans=tuple(spans),
        recompute=tuple(recompute),
        end=end,
        exact_tokens=exact,
    )


@given(plans())
def test_exact_copied_and_computed_tokens_partition_the_prompt(plan):
    tokens = ["?"] * plan.prompt_tokens
    parts = [(0, plan.exact_tokens)]
    parts += [(span.target_start, span.target_end) for span in plan.copies]
    parts += [(hole.start, hole.end) for hole in plan.holes]
    parts.append((plan.end, plan.prompt_tokens))
    for low, high in parts:
        for at in range(low, high):
            assert tokens[at] == "?", "covered twice"
            tokens[at] = "x"
    assert "?" not in tokens
    assert plan.reused_tokens + plan.recomputed_tokens == sum(s.length for s in plan.spans)
    assert (
        plan.exact_tokens
        + plan.reused_tokens
        + plan.recomputed_tokens
        + plan.hole_tokens
        + plan.tail_tokens
        == plan.prompt_tokens
    )
    assert plan.tail_tokens >= 1


@given(plans())
def test_copies_keep_their_donor_positions(plan):
    by_target = {
        span.target_start + i: (span.donor_id, span.donor_start + i)
        for span in plan.spans
        for i in range(span.length)
    }
    for copy in plan.copies:
        for i in range(copy.length):
            assert by_target[copy.target_start + i] == (copy.donor_id, copy.donor_start + i)


@given(plans())
def test_a_plan_survives_json_and_is_hashable(plan):
    again = Plan.from_dict(json.loads(plan.to_json()))
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.plan_id == plan.plan_id


@given(plans())
def test_no_plan_says_materialised(plan):
    """Only an engine's confirmation makes that outcome."""
    assert plan.outcome is not Outcome.MATERIALISED
    for reason in DeclineReason:
        declined = plan.declined(reason)
        assert not declined.executable
        assert declined.outcome is reason.outcome is not Outcome.MATERIALISED


def span(start, length):
    return Span(donor_id="d", donor_start=0, target_start=start, length=length)


@pytest.mark.parametrize(
    "parts",
    [
        {"end": 10},
        {"end": -1},
        {"end": 9, "spans": (span(0, 4), span(3, 2))},
        {"end": 9, "spans": (span(5, 2), span(0, 2))},
        {"end": 5, "spans": (span(4, 3),)},
        {"end": 9, "exact_tokens": 4, "spans": (span(2, 3),)},
        {"end": 9, "recompute": (Hole(3, 5), Hole(4, 6))},
        {"end": 5, "recompute": (Hole(4, 6),)},
        {"end": 5, "exact_tokens": 11},
    ],
)
def test_broken_plans_cannot_be_made(parts):
    with pytest.raises(PlanError):
        Plan(namespace="n", prompt_tokens=10, **parts)


@pytest.mark.parametrize("bad", [(3, 3), (4, 2), (-1, 2)])
def test_empty_and_backward_holes_cannot_be_made(bad):
    with pytest.raises(PlanError):
        Hole(*bad)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"spans": "x"},
        {"end": None},
        {"reason": "because"},
        {"evidence": {"unknown": 1}},
    ],
)
def test_corrupt_documents_are_serialisation_errors(change):
    plan = Plan(namespace="n", prompt_tokens=10)
    with pytest.raises(SerialisationError):
        Plan.from_dict({**plan.to_dict(), **change})


def test_similar_regions_survive_json():
    region = SimilarRegion(donor_id="d", donor_start=1, donor_end=3, target_start=5, target_end=6)
    plan = Plan(namespace="n", prompt_tokens=10)
    data = plan.to_dict()
    data["evidence"]["similar_regions"] = [
        {"donor_id": "d", "donor_start": 1, "donor_end": 3, "target_start": 5, "target_end": 6}
    ]
    assert Plan.from_dict(data).evidence.similar_regions == (region,)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12))
def test_merged_holes_cover_the_same_tokens_without_touching(pairs):
    holes = [Hole(start, start + length) for start, length in pairs]
    merged = merge_holes(holes)
    before = {at for hole in holes for at in range(hole.start, hole.end)}
    after = [at for hole in merged for at in range(hole.start, hole.end)]
    assert sorted(before) == after
    assert all(one.end < two.start for one, two in itertools.pairwise(merged))
