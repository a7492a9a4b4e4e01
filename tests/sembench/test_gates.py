"""Gates, one by one: each holds, fails and misses exactly where its table line says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sembench import metrics
from sembench.comparing.calibration import Calibration
from sembench.engine_events import EngineSummary
from sembench.errors import UsageError
from sembench.gates import GATES, check
from sembench.gates.check import requested
from sembench.results import RequestRow, Result, RunMetadata, write_result
from tests.sembench.mock_runs import sembench

SUMMARY = EngineSummary(
    engine="vllm",
    semantic_hits=2,
    materialization_events=2,
    materialized_tokens=320,
    materialized_units=4,
)
CALIBRATION = Calibration(rouge_mean=0.9, rouge_low=0.85, rouge_high=0.95, pairs=20)


def row(item: str, **fields: Any) -> RequestRow:
    base: dict[str, Any] = {
        "item_id": item,
        "dataset": "d",
        "transform": "t",
        "prompt_tokens": 320,
        "total_blocks": 20,
        "engine_prompt_tokens": 320,
        "backend_confirmed_blocks": 10,
        "backend_confirmed_tokens": 160,
        "cached_tokens": 160,
        "exact_confirmed_tokens": 0,
        "fuzzy_confirmed_tokens": 160,
        "claimed_reuse_tokens": 160,
        "route_outcome": "semantic_placement",
        "ttft_ms": 10.0,
        "cold_ttft_ms": 50.0,
        "quality_pass": True,
        "quality_score": 1.0,
        "donor_fact_leak": False,
        "repeat_contaminated": False,
        "warm_vs_cold_rouge_l": 0.9,
    }
    return RequestRow(**{**base, **fields})


def negative(item: str, **fields: Any) -> RequestRow:
    quiet: dict[str, Any] = {
        "negative_control": True,
        "backend_confirmed_blocks": 0,
        "backend_confirmed_tokens": 0,
        "cached_tokens": 0,
        "fuzzy_confirmed_tokens": 0,
        "claimed_reuse_tokens": 0,
        "route_outcome": "cold",
        "ttft_ms": 50.0,
        "donor_fact_leak": None,
    }
    return row(item, **{**quiet, **fields})


def result(*rows: RequestRow, **fields: Any) -> Result:
    made = Result(
        run=RunMetadata(run_id="r", engine="gateway"),
        created_at_utc="",
        config={"block_size": 16},
        environment={},
        aggregate=metrics.aggregate(rows),
        by_transform={},
        requests=rows,
    )
    return replace(made, **fields)


GOOD = (row("a"), row("b"), negative("n"))

# gate, a threshold that holds, one that does not, what takes its metric away
TABLE: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("min_quality_pass_rate", 1.0, 1.01, {"quality_pass": None}),
    ("min_semantic_placement_rate", 0.6, 0.7, {"route_outcome": None}),
    ("min_backend_confirmed_block_rate", 0.3, 0.4, {"backend_confirmed_blocks": None}),
    ("min_materialization_events", 2, 3, {"summaries": ()}),
    ("min_materialized_tokens", 320, 321, {"summaries": ()}),
    ("min_materialized_units", 4, 5, {"summaries": ()}),
    ("max_negative_control_confirmed_rate", 0.0, -0.1, {"negative_control": False}),
    ("max_negative_control_semantic_placement_rate", 0.0, -0.1, {"negative_control": False}),
    ("require_materialized_reuse", True, False, {"summaries": ()}),
    ("require_no_engine_errors", 0, -1, {"summaries": ()}),
    ("min_blended_ttft_speedup", 5.0, 5.1, {"cold_ttft_ms": None}),
    ("max_negative_control_speedup_deviation", 0.0, -0.1, {"negative_control": False}),
    ("require_contamination_check", 0.0, -0.1, {"repeat_contaminated": None}),
    ("max_warm_vs_cold_rouge_drop", 0.11, 0.09, {"warm_vs_cold_rouge_l": None}),
    ("max_donor_fact_leak_rate", 0.0, -0.1, {"donor_fact_leak": None}),
    ("max_unconfirmed_claim_rate", 0.0, -0.1, {"claimed_reuse_tokens": None}),
    ("max_request_error_rate", 0.0, -0.1, {"requests": ()}),
]


def test_the_table_covers_every_gate() -> None:
    assert {line[0] for line in TABLE} | {"aggregate_consistent"} == {g.name for g in GATES}


def judge(
    rows: tuple[RequestRow, ...], gates: dict[str, Any], summaries: tuple[EngineSummary, ...]
) -> Any:
    return check(result(*rows), summaries, requested(gates))


@pytest.mark.parametrize(("name", "holding", "failing", "absent"), TABLE)
def test_a_gate_holds_fails_and_misses(
    name: str, holding: Any, failing: Any, absent: dict[str, Any]
) -> None:
    assert judge(GOOD, {name: holding}, (SUMMARY,)).passed
    failed = judge(GOOD, {name: failing}, (SUMMARY,))
    assert failed.failed_gates == (name,)
    assert failed.failures[0].startswith(f"{name}: ")

    rows: tuple[RequestRow, ...] = GOOD
    summaries: tuple[EngineSummary, ...] = (SUMMARY,)
    if "summaries" in absent:
        summaries = ()
    elif "requests" in absent:
        rows = ()
    else:
        rows = tuple(replace(one, **absent) for one in rows)
    missing = check(result(*rows), summaries, requested({name: holding}))
    assert missing.failed_gates == (name,)
    assert len(missing.missing_metrics) == 1
    allowed = check(result(*rows), summaries, requested({name: holding}), allow_missing=True)
    assert allowed.passed
    assert allowed.missing_metrics == missing.missing_metrics


def test_nothing_asked_for_means_only_the_defaults_and_their_absence_is_no_failure() -> None:
    assert judge(GOOD, {}, ()).passed
    assert judge((row("a"),), {}, ()).passed
    guilty = negative("n", fuzzy_confirmed_tokens=64, cached_tokens=64, backend_confirmed_blocks=4)
    assert judge((row("a"), guilty), {}, ()).failed_gates == (
        "max_negative_control_confirmed_rate",
    )


def test_a_shared_template_is_no_false_claim_but_more_than_it_explains_is() -> None:
    # 20 template tokens beyond the manifest's prompt, served from the exact cache.
    shared = negative("n", exact_confirmed_tokens=32, engine_prompt_tokens=340)
    assert judge((shared,), {"max_negative_control_confirmed_rate": 0.0}, ()).passed
    more = replace(shared, exact_confirmed_tokens=160)
    verdict = judge((more,), {"max_negative_control_confirmed_rate": 0.0}, ())
    assert not verdict.passed


def test_where_a_backend_does_not_tell_exact_from_semantic_every_block_counts() -> None:
    unsplit = negative(
        "n", exact_confirmed_tokens=None, fuzzy_confirmed_tokens=None, backend_confirmed_blocks=1
    )
    verdict = judge((unsplit,), {"max_negative_control_confirmed_rate": 0.0}, ())
    assert verdict.observed["negative_control_confirmed_rate"] == pytest.approx(1 / 20)


def test_answers_far_more_alike_than_two_cold_runs_fail() -> None:
    floor = Calibration(rouge_mean=0.6, rouge_low=0.5, rouge_high=0.7, pairs=9)
    verdict = check(result(*GOOD), (), requested({}), calibration=floor)
    assert verdict.failed_gates == ("noise_floor_calibration",)
    assert check(result(*GOOD), (), requested({}), calibration=CALIBRATION).passed


def test_the_drop_is_judged_beside_the_noise_floor() -> None:
    gates = requested({"max_warm_vs_cold_rouge_drop": 0.02})
    assert not check(result(*GOOD), (), gates).passed
    assert check(result(*GOOD), (), gates, calibration=CALIBRATION).passed


def test_pairs_that_failed_or_were_not_cold_do_not_count_as_fast() -> None:
    dirty = row("c", cold_ttft_ms=9000.0, flush_contaminated=True)
    broken = row("d", cold_ttft_ms=9000.0, error="HTTP 500")
    verdict = judge((*GOOD, dirty, broken), {"min_blended_ttft_speedup": 5.0}, ())
    assert verdict.observed["blended_ttft_speedup"] == pytest.approx(5.0)


def test_claims_are_held_to_counters_where_there_is_no_log() -> None:
    window = {"prometheus": {"semantics": {"external_prefix_cache_hits": 100.0}}}
    verdict = check(
        result(*GOOD, engine=window), (), requested({"max_unconfirmed_claim_rate": 0.0})
    )
    assert verdict.observed["unconfirmed_claim_rate"] == pytest.approx(220 / 320)


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(UsageError, match="min_everything"):
        requested({"min_everything": 1.0})


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((), 0),
        (("--min-quality-pass-rate", 1.0), 0),
        (("--min-quality-pass-rate", 1.1), 1),
        (("--require-materialized-reuse",), 1),
        (("--require-materialized-reuse", "--allow-missing"), 0),
        (("--engine-summary", "nowhere.json"), 2),
    ],
)
def test_exit_codes_tell_ci_what_happened(
    tmp_path: Path, flags: tuple[Any, ...], code: int
) -> None:
    path = tmp_path / "r.json"
    write_result(path, result(*GOOD))
    done = sembench("assert-result-gates", "--result", path, *flags)
    assert done.exit_code == code
    if code < 2:
        verdict = json.loads(done.stdout)
        assert verdict["passed"] is (code == 0)
        assert set(verdict) >= {
            "result",
            "engine_summaries",
            "passed",
            "failures",
            "observed",
            "requested_gates",
            "missing_metrics",
            "allow_missing",
        }


def test_a_result_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    assert sembench("assert-result-gates", "--result", path).exit_code == 2
