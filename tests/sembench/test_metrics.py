"""Metrics, against figures computed the plain way from the definitions."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.errors import PlannerError
from sembench.metrics import (
    Aggregate,
    ProposedSpan,
    aggregate,
    block_hash,
    block_strip,
    by_transform,
    confirmed_fields,
    exact_block_mask,
    plan_blocks,
    plan_fields,
)
from sembench.results import RequestRow

tokens = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 2), max_size=30)
sizes = st.integers(1, 6)


def array(values):
    return np.array(values, dtype=np.uint32)


def naive_hash(block):
    return hashlib.sha256(struct.pack(f"<{len(block)}I", *block)).hexdigest()[:32]


def naive_blocks(values, size):
    return [values[start : start + size] for start in range(0, len(values) // size * size, size)]


@given(tokens, st.lists(tokens, max_size=3), sizes)
def test_exact_hits_are_those_of_the_public_hash(recipient, donors, size):
    pool = {naive_hash(block) for donor in donors for block in naive_blocks(donor, size)}
    expected = [naive_hash(block) in pool for block in naive_blocks(recipient, size)]
    assert exact_block_mask(array(recipient), map(array, donors), size).tolist() == expected


@given(st.lists(st.integers(0, 2**32 - 1), max_size=8))
def test_the_block_hash_is_the_public_one(block):
    assert block_hash(block) == naive_hash(block)


@st.composite
def proposals(draw):
    recipient = draw(st.lists(st.integers(0, 2), min_size=1, max_size=24))
    donors = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1,
                           max_size=3))  # fmt: skip
    spans = []
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(0, len(donors) - 1))
        length = draw(st.integers(1, min(len(donors[number]), len(recipient))))
        spans.append(
            ProposedSpan(
                donor_id=f"d{number}",
                donor_start=draw(st.integers(0, len(donors[number]) - length)),
                target_start=draw(st.integers(0, len(recipient) - length)),
                length=length,
            )
        )
    return recipient, {f"d{n}": donor for n, donor in enumerate(donors)}, spans


@given(proposals(), sizes)
def test_planned_blocks_follow_their_definitions(proposal, size):
    recipient, donors, spans = proposal
    origin = {}
    for span in spans:
        for offset in range(span.length):
            origin.setdefault(
                span.target_start + offset, (span.donor_id, span.donor_start + offset)
            )
    candidate, eligible = [], []
    for start in range(0, len(recipient) // size * size, size):
        places = [origin.get(position) for position in range(start, start + size)]
        whole = None not in places
        candidate.append(whole)
        eligible.append(
            whole
            and all(
                place == (places[0][0], places[0][1] + step) for step, place in enumerate(places)
            )
        )
    wrong = sum(donors[d][there] != recipient[here] for here, (d, there) in origin.items())
    plan = plan_blocks(
        array(recipient), {name: array(donor) for name, donor in donors.items()}, spans, size
    )
    assert plan.candidate.tolist() == candidate
    assert plan.eligible.tolist() == eligible
    assert plan.mismatched_tokens == wrong


@pytest.mark.parametrize(
    ("span", "named"),
    [
        ({"donor_id": "x"}, r"spans\[0\]\.donor_id"),
        ({"length": 0}, r"spans\[0\]\.length"),
        ({"donor_start": -1}, "outside the donor's 4 tokens"),
        ({"donor_start": 2}, "outside the donor's 4 tokens"),
        ({"target_start": 4}, "outside the recipient's 6 tokens"),
        ({"target_start": -1}, "outside the recipient's 6 tokens"),
    ],
)
def test_spans_out_of_place_are_named(span, named):
    good = {"donor_id": "d", "donor_start": 0, "target_start": 0, "length": 3}
    with pytest.raises(PlannerError, match=named):
        plan_blocks(array(range(6)), {"d": array(range(4))}, [ProposedSpan(**good | span)], 2)


@given(proposals(), sizes)
def test_the_strip_tells_what_the_counts_tell(proposal, size):
    recipient, donors, spans = proposal
    arrays = {name: array(donor) for name, donor in donors.items()}
    exact = exact_block_mask(array(recipient), arrays.values(), size)
    plan = plan_blocks(array(recipient), arrays, spans, size)
    strip, fields = block_strip(exact, plan), plan_fields(exact, plan, size)
    assert len(strip) == len(recipient) // size
    assert strip.count("x") + strip.count("b") == exact.sum()
    assert sum(map(strip.count, "scb")) == fields["semantic_candidate_blocks"]
    assert strip.count("s") <= fields["semantic_eligible_blocks"]
    assert set(block_strip(exact, None)) <= {".", "x"}


counts = st.integers(0, 50)


@st.composite
def rows(draw):
    total = draw(counts)
    planned, confirmed = draw(st.booleans()), draw(st.booleans())
    candidate = draw(st.integers(0, total)) if planned else None
    eligible = draw(st.integers(0, candidate)) if planned else None
    cached = draw(st.integers(0, total * 16)) if confirmed else None
    exact = draw(st.integers(0, total))
    return RequestRow(
        item_id="i",
        dataset="d",
        transform=draw(st.sampled_from("ab")),
        negative_control=draw(st.booleans()),
        prompt_tokens=total * 16 + draw(st.integers(0, 15)),
        total_blocks=total,
        exact_blocks=exact,
        exact_tokens=exact * 16,
        semantic_candidate_blocks=candidate,
        semantic_candidate_tokens=None if candidate is None else candidate * 16,
        semantic_eligible_blocks=eligible,
        semantic_eligible_tokens=None if eligible is None else eligible * 16,
        route_outcome=draw(st.sampled_from([None, "semantic_placement", "load_balance"])),
        quality_pass=draw(st.sampled_from([None, True, False])),
        ttft_ms=draw(st.none() | st.floats(0, 1e6)),
        error=draw(st.sampled_from([None, "failed"])),
        **confirmed_fields(cached, total_blocks=total, exact_block_hit_rate=0.0, size=16),
    )


def naive_rate(chosen, field):
    if chosen and all(getattr(row, field) is None for row in chosen):
        return None
    total = sum(row.total_blocks for row in chosen)
    return sum(getattr(row, field) or 0 for row in chosen) / total if total else 0.0


@given(st.lists(rows(), max_size=12))
def test_aggregates_pool_all_requests(chosen):
    figures = aggregate(chosen)
    negative = [row for row in chosen if row.negative_control]
    for key, field in (
        ("exact_block_hit_rate", "exact_blocks"),
        ("semantic_candidate_block_rate", "semantic_candidate_blocks"),
        ("semantic_eligible_block_rate", "semantic_eligible_blocks"),
        ("backend_confirmed_block_rate", "backend_confirmed_blocks"),
    ):
        assert figures[key] == pytest.approx(naive_rate(chosen, field))
    for key, field in (
        ("negative_control_exact_block_hit_rate", "exact_blocks"),
        ("negative_control_semantic_eligible_rate", "semantic_eligible_blocks"),
        ("negative_control_backend_confirmed_rate", "backend_confirmed_blocks"),
    ):
        assert figures[key] == pytest.approx(naive_rate(negative, field))
    assert figures["requests"] == len(chosen)
    assert figures["negative_control_requests"] == len(negative)
    assert figures["errors"] == sum(row.error is not None for row in chosen)
    if figures["semantic_eligible_lift"] is not None:
        assert figures["semantic_eligible_lift"] == pytest.approx(
            figures["semantic_eligible_block_rate"] - figures["exact_block_hit_rate"]
        )
    routes = [row.route_outcome for row in chosen]
    if any(routes):
        assert figures["semantic_placement_rate_by_request"] == pytest.approx(
            routes.count("semantic_placement") / len(chosen)
        )
    elif chosen:
        assert figures["semantic_placement_rate_by_request"] is None
    times = sorted(row.ttft_ms for row in chosen if row.ttft_ms is not None)
    assert figures["ttft_ms_p50"] == (pytest.approx(np.median(times)) if times else None)


@given(st.lists(rows(), max_size=12))
def test_transforms_are_aggregated_apart(chosen):
    apart = by_transform(chosen)
    assert list(apart) == sorted({row.transform for row in chosen})
    for name, figures in apart.items():
        assert figures == aggregate([row for row in chosen if row.transform == name])


def test_nothing_measured_is_null_and_nothing_to_measure_is_zero():
    row = RequestRow(item_id="i", dataset="d", transform="t", prompt_tokens=40, total_blocks=2)
    figures = aggregate([row])
    for name in ("semantic_eligible_block_rate", "backend_confirmed_block_rate",
                 "semantic_eligible_lift", "quality_pass_rate", "ttft_ms_p50"):  # fmt: skip
        assert figures[name] is None
    assert figures["negative_control_requests"] == 0
    assert figures["negative_control_backend_confirmed_rate"] == 0.0
    assert Aggregate().to_dict()["exact_block_hit_rate"] == 0.0


def test_confirmation_is_in_whole_blocks_and_absent_where_the_backend_is_silent():
    fields = confirmed_fields(47, total_blocks=4, exact_block_hit_rate=0.25, size=16)
    assert fields["backend_confirmed_blocks"] == 2
    assert fields["backend_confirmed_tokens"] == 32
    assert fields["backend_confirmed_lift"] == 0.25
    assert confirmed_fields(None, total_blocks=4, exact_block_hit_rate=0.25, size=16) == {}
