"""Parsers against written log samples: only what an engine says it did counts as reuse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.engine_events import PARSERS, EngineSummary, summarise
from sembench.engine_events.connector_audit import audited_requests
from sembench.errors import ResultError, UsageError

VLLM_LOG = """\
INFO 10-01 12:00:00 SemBlend donor registered request_id=cmpl-1 namespace=vllm:ab tokens=512 blocks=32
INFO SemBlend semantic lookup hit request_id=cmpl-2 donor_id=cmpl-1 similarity=0.93 kind=segmented reusable_tokens=480 reason=ok
INFO SemBlend request-local experimental load advertised request_id=cmpl-2 donor_id=cmpl-1 tokens=448
INFO SemBlend materializing request_id=cmpl-2 donor_id=cmpl-1 tokens=448
INFO SemBlend materialized request_id=cmpl-2 donor_id=cmpl-1 tokens=448
INFO SemBlend semantic lookup miss request_id=cmpl-3 reason=no_match
INFO SemBlend materialized request_id=cmpl-9 donor_id=cmpl-1 tokens=many
INFO SemBlend materialized request_id=cmpl-9 donor_id=cmpl-1 tokens=-64
ERROR engine core died
2026-06-22 [E:onnxruntime:Default, provider.cc] ERROR failed to load CUDA provider
Traceback (most recent call last):
"""  # noqa: E501

SGLANG_LOG = """\
[FUZZY] register_donor: ok request_id=r1 tokens=900
[FUZZY] register_donor_async: ok request_id=r2 tokens=700
semantic provider hit donor=r1 similarity=0.91 tokens=640
[FUZZY RADIX] Fuzzy match success: rid=r3 cached=600 donors=2 quality_cosine=0.97
[FUZZY RADIX] segmented prefill realized donor phase: rid=r3 donor_tokens=400 target=[64,464) direct_paged_kv=True
[FUZZY RADIX] segmented prefill realized donor phase: rid=r3 donor_tokens=200 target=[500,700) direct_paged_kv=True
[FUZZY] Realized 600 fuzzy tokens
[FUZZY] Realized lots fuzzy tokens
[FUZZY RADIX] rejected reason=below_min_ratio
"""  # noqa: E501

LMCACHE_LOG = """\
LMCache INFO: Storing 256 out of total 512 new tokens
LMCache INFO: Stored 512 out of total 512 tokens
LMCache INFO: Reqid: cmpl-1, Total tokens 600, Inference Engine computed tokens: 0, LMCache hit tokens: 512
LMCache INFO: Retrieved 512 out of 512 tokens
LMCache INFO: Reqid: cmpl-2, Total tokens 600, Inference Engine computed tokens: 64, LMCache hit tokens: 64
LMCache INFO: Reusing 128/256 tokens
LMCache INFO: Retrieved 0 out of 256 tokens
LMCache INFO: Retrieved some tokens
"""  # noqa: E501


def jsonl(*records: object) -> list[str]:
    return [json.dumps(record) for record in records]


def test_vllm_counts_each_event_once_and_no_start_as_reuse() -> None:
    summary = summarise("vllm", VLLM_LOG.splitlines())
    assert summary.donor_registrations == 1
    assert summary.semantic_hits == 1
    assert summary.load_advertisements == 1
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 448)
    assert summary.events["materializing"] == 1
    assert summary.rejection_reasons == {"no_match": 1}
    assert summary.malformed_lines == 2
    assert summary.error_count == 2
    assert len(summary.runtime_warnings) == 1
    assert summary.materialized_tokens_by_request == {"cmpl-2": 448}
    assert summary.materialized_semantic_kv_reuse


def test_sglang_phases_replace_the_realized_line_that_tells_of_the_same_tokens() -> None:
    summary = summarise("sglang", SGLANG_LOG.splitlines())
    assert summary.donor_registrations == 2
    assert summary.semantic_hits == 2
    assert (summary.materialized_units, summary.materialized_tokens) == (2, 600)
    assert summary.materialized_tokens_by_request == {"r3": 600}
    assert summary.malformed_lines == 1
    assert summary.rejection_reasons == {"below_min_ratio": 1}


def test_sglang_realized_counts_where_there_are_no_phases() -> None:
    summary = summarise(
        "sglang", ["[FUZZY] Realized 320 fuzzy tokens", "[FUZZY] Realized 0 fuzzy tokens"]
    )
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 320)


def test_lmcache_counts_what_was_retrieved_not_what_was_announced() -> None:
    summary = summarise("lmcache", LMCACHE_LOG.splitlines())
    assert summary.donor_registrations == 2
    assert summary.semantic_hits == 1
    assert (summary.materialization_events, summary.materialized_tokens) == (2, 640)
    assert summary.malformed_lines == 1


def test_trtllm_takes_tokens_from_the_record_or_from_its_own_lookup() -> None:
    summary = summarise(
        "trtllm",
        [
            *jsonl(
                {"event": "scheduler_initialized"},
                {"event": "donor_registered", "request_id": "1"},
                {
                    "event": "lookup",
                    "request_id": "2",
                    "found": True,
                    "similarity": 0.9,
                    "num_new_matched_tokens": 256,
                },
                {"event": "lookup", "request_id": "3", "found": False, "rejection_reason": "stale"},
                {"event": "plan_dispatched", "request_id": "2"},
                {
                    "event": "materialized",
                    "request_id": "2",
                    "materialized": [4, 5, 6],
                    "requires_rope_correction": True,
                },
                {"event": "materialized", "request_id": "4", "materialized": 0},
                {"event": "materialized", "request_id": "5", "materialized": "all"},
                {
                    "event": "engine_blend_boundary",
                    "boundary_layer": 3,
                    "prefix_token_count": 256,
                    "suffix_token_count": 12,
                },
            ),
            '{"event": "materialized", "request_id": "6", "materia',
            "[TensorRT-LLM][ERROR] out of memory",
        ],
    )
    assert summary.semantic_hits == 1
    assert summary.load_advertisements == 1
    assert (summary.materialized_units, summary.materialized_tokens) == (3, 256)
    assert summary.rope_corrections == 1
    assert summary.engine_boundaries == 1
    assert summary.rejection_reasons == {"stale": 1, "nothing_materialized": 1}
    assert summary.malformed_lines == 2
    assert summary.error_count == 1


def audit(event: str, request: str, seq: int, **payload: object) -> dict[str, object]:
    return {
        "schema_version": 2,
        "connector_id": "c0",
        "request_id": request,
        "request_seq": 0,
        "event_seq": seq,
        "event": event,
        **payload,
    }


AUDIT = jsonl(
    audit("request_first_seen", "r1", 0, prompt_tokens=512),
    audit("semantic_lookup_hit", "r1", 1, similarity=0.88),
    audit(
        "semantic_span_load_advertised", "r1", 2, boundary=32, token_count=400, donors_used=["d"]
    ),
    audit("runtime_materialized", "r1", 3, tokens=384, layers_materialized=28, pieces=3),
    audit("semantic_lookup_miss", "r2", 0, miss_rejection_reason="below_min_reuse_ratio"),
    audit("runtime_materialization_declined", "r3", 0, declined_reason="donor_gone"),
    audit("an_event_of_tomorrow", "r4", 0),
)


def test_the_audit_stream_counts_materialisation_only_where_it_says_so() -> None:
    summary = summarise("connector", AUDIT)
    assert summary.semantic_hits == 1
    assert (summary.materialized_units, summary.materialized_tokens) == (3, 384)
    assert summary.rejection_reasons == {"below_min_reuse_ratio": 1, "donor_gone": 1}
    assert summary.events["an_event_of_tomorrow"] == 1
    request = audited_requests(AUDIT)["r1"]
    assert (request.prompt_tokens, request.boundary, request.donors_used) == (512, 32, 1)
    assert (request.advertised_tokens, request.materialised_tokens) == (400, 384)


def test_records_shipped_twice_count_once() -> None:
    assert summarise("connector", AUDIT * 3) == summarise("connector", AUDIT)


def test_records_of_another_schema_are_not_guessed_at() -> None:
    record = {**audit("runtime_materialized", "r1", 0, tokens=100), "schema_version": 3}
    summary = summarise("connector", jsonl(record, [1], "text", 7))
    assert (summary.materialized_tokens, summary.malformed_lines) == (0, 4)


def test_a_vllm_log_with_its_audit_in_it_does_not_count_twice() -> None:
    line = "INFO SemBlend materialized request_id=r1 donor_id=d tokens=384"
    summary = summarise("vllm", [line, *AUDIT])
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 384)


@pytest.mark.parametrize("engine", sorted(PARSERS))
@given(lines=st.lists(st.text(max_size=60), max_size=8))
def test_no_text_makes_a_parser_fail_or_count_reuse_without_its_marker(
    engine: str, lines: list[str]
) -> None:
    summary = summarise(engine, lines)
    assert summary.materialized_tokens == 0
    assert not summary.materialized_semantic_kv_reuse


@pytest.mark.parametrize("engine", ["trtllm", "connector", "vllm"])
@given(
    record=st.dictionaries(
        st.sampled_from(
            ["event", "tokens", "materialized", "request_id", "found", "schema_version"]
        ),
        st.one_of(
            st.none(),
            st.integers(),
            st.text(max_size=5),
            st.lists(st.integers(), max_size=2),
            st.sampled_from(["materialized", "runtime_materialized", "lookup"]),
        ),
    )
)
def test_any_json_record_is_read_without_failing(engine: str, record: dict[str, object]) -> None:
    summary = summarise(engine, jsonl(record))
    assert summary.materialized_tokens >= 0


@pytest.mark.parametrize("engine", sorted(PARSERS))
def test_summaries_survive_a_file(engine: str) -> None:
    logs = {"vllm": VLLM_LOG, "sglang": SGLANG_LOG, "lmcache": LMCACHE_LOG}
    summary = summarise(engine, logs.get(engine, "\n".join(AUDIT)).splitlines())
    data = json.loads(json.dumps(summary.to_dict()))
    assert EngineSummary.from_dict(data, where="file") == summary
    assert data["materialized_semantic_kv_reuse"] is summary.materialized_semantic_kv_reuse


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([], "not an engine summary"),
        ({"engine": "vllm", "semantic_hits": -1}, "semantic_hits"),
        ({"engine": "vllm", "materialized_tokens": 1.5}, "materialized_tokens"),
        ({"engine": "vllm", "errors": "none"}, "errors"),
        ({"engine": "vllm", "rejection_reasons": []}, "rejection_reasons"),
    ],
)
def test_a_summary_that_is_none_is_refused_by_field(data: object, field: str) -> None:
    with pytest.raises(ResultError, match=field):
        EngineSummary.from_dict(data, where="file")


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="vllm, sglang, trtllm, lmcache"):
        summarise("triton", [])


def test_an_endless_log_of_errors_keeps_a_bounded_summary() -> None:
    summary = summarise("vllm", ("ERROR " + "x" * 5000 for _ in range(5000)))
    assert summary.error_count == 5000
    assert len(summary.errors) == 200
    assert max(map(len, summary.errors)) == 500
