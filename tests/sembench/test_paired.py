"""Pairs: what counts, what is left out, and what an audit adds."""

from __future__ import annotations

from typing import Any

import pytest

from sembench.comparing import paired
from sembench.results import RequestRow


def row(**fields: Any) -> RequestRow:
    base: dict[str, Any] = {
        "item_id": "i",
        "dataset": "d",
        "transform": "t",
        "prompt_tokens": 100,
        "ttft_ms": 10.0,
        "cold_ttft_ms": 40.0,
    }
    return RequestRow(**{**base, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"error": "x"}, "warm_error"),
        ({"cold_error": "x"}, "cold_error"),
        ({"cold_ttft_ms": None}, "unpaired"),
        ({"flush_contaminated": True}, "flush_contaminated"),
    ],
)
def test_a_pair_counts_only_where_both_halves_are_what_they_should_be(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert paired.exclusion(row(**fields)) == reason
    summary = paired.summarise([row(**fields)])
    assert summary["pairs"] == (reason is None)
    assert summary["excluded_reasons"] == ({} if reason is None else {reason: 1})


def test_hits_misses_and_negative_controls_are_apart() -> None:
    summary = paired.summarise(
        [
            row(fuzzy_confirmed_tokens=64),
            row(fuzzy_confirmed_tokens=63, ttft_ms=40.0),
            row(negative_control=True, fuzzy_confirmed_tokens=90, ttft_ms=20.0),
        ]
    )
    assert (summary["hit_pairs"], summary["miss_pairs"]) == (1, 1)
    assert summary["negative_control_pairs"] == 1
    assert summary["hit_ttft_speedup_median"] == 4.0
    assert summary["miss_ttft_speedup_median"] == 1.0
    assert summary["blended_ttft_speedup_median"] == 2.5
    assert summary["negative_control_speedup_deviation"] == 1.0
    assert summary["negative_control_semantic_token_rate"] == 0.9


def test_an_audit_outranks_what_the_response_says() -> None:
    both = row(fuzzy_confirmed_tokens=500, audit_materialized_tokens=0)
    assert paired.semantic_tokens(both) == 0
    assert paired.semantic_tokens(row()) is None


def test_a_model_that_is_wrong_cold_as_well_does_not_leak() -> None:
    rows = [
        row(donor_fact_leak=True),
        row(donor_fact_leak=True, cold_donor_fact_leak=True),
        row(donor_fact_leak=False),
        row(),
    ]
    summary = paired.integrity(rows)
    assert (summary["donor_fact_probes"], summary["donor_fact_leaks"]) == (3, 1)


def test_audits_are_held_to_what_the_manifest_expects() -> None:
    rows = [
        row(
            expected_semantic=True,
            expected_supplied_tokens=100,
            expected_span_target_start=32,
            audit_boundary_tokens=32,
            audit_materialized_tokens=80,
            audit_mechanism="scatter",
        ),
        row(
            expected_semantic=True,
            expected_supplied_tokens=100,
            expected_span_target_start=32,
            audit_boundary_tokens=48,
            audit_materialized_tokens=0,
            audit_mechanism="none",
        ),
        row(expected_semantic=False, audit_materialized_tokens=0, audit_mechanism="none"),
    ]
    found = paired.audited(rows)
    assert found["boundary_alignment_rate"] == 0.5
    assert found["materialized_reuse_rate"] == 0.5
    assert found["materialized_reuse_token_rate"] == pytest.approx(0.4)
    assert found["mechanisms"] == {"none": 2, "scatter": 1}


def test_without_pairs_or_audit_everything_is_null_rather_than_zero() -> None:
    summary = paired.summarise([RequestRow(item_id="i", dataset="d", transform="t")])
    for name in (
        "blended_ttft_speedup_median",
        "warm_vs_cold_rouge_l_mean",
        "donor_fact_leak_rate",
        "propagation_contamination_rate",
        "boundary_alignment_rate",
        "materialized_reuse_rate",
        "mechanisms",
        "claimed_reuse_tokens",
    ):
        assert summary[name] is None, name
