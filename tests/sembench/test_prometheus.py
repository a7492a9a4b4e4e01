"""Counters of engines: read as written, subtracted, never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.errors import ResultError
from sembench.live.prometheus import (
    SNAPSHOT_VERSION,
    delta,
    parse,
    semantic_tokens,
    semantics,
)
from tests.sembench.mock_runs import load_json, mock_engine, sembench, short_manifest

PAGE = r"""
# HELP vllm:external_prefix_cache_hits tokens
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{model_name="a \"quoted\" \\ name"} 12.0
vllm:prompt_tokens_by_source_total{source="external_kv_transfer",model_name="m"} 1e2 1700000000
vllm:prompt_tokens_by_source_total{source="local_compute",model_name="m"} 7
no_labels 3
undefined NaN
endless +Inf
"""


def snapshot(samples: dict[str, float], url: str = "http://a") -> dict[str, object]:
    return {"snapshot_version": SNAPSHOT_VERSION, "endpoints": {url: samples}}


def test_a_page_is_read_with_labels_escapes_and_timestamps() -> None:
    samples = {(sample.name, sample.labels.get("source")): sample for sample in parse(PAGE)}
    assert len(samples) == 5
    hits = samples["vllm:external_prefix_cache_hits_total", None]
    assert hits.labels == {"model_name": 'a "quoted" \\ name'}
    assert samples["vllm:prompt_tokens_by_source_total", "external_kv_transfer"].value == 100.0


@pytest.mark.parametrize("line", ["not a sample", 'broken{x="y"} abc', "<html>"])
def test_a_page_with_a_line_that_is_no_sample_is_refused_whole(line: str) -> None:
    # Half a page would make a wrong window.
    with pytest.raises(ResultError, match="text format"):
        parse(PAGE + line)


def test_a_key_is_read_back_with_its_escapes() -> None:
    (hits, *_) = [sample for sample in parse(PAGE) if "quoted" in sample.key]
    (again,) = parse(f"{hits.key} 12.0")
    assert again == hits


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_connectors_counters_confirm_reuse(engine: str) -> None:
    found = semantics({f'{engine}:semblend_tokens_total{{source="reused"}}': 64.0})
    assert semantic_tokens(found) == 64.0


@pytest.mark.parametrize("suffix", ["", "_total"])
def test_meanings_are_found_with_or_without_the_suffix(suffix: str) -> None:
    window = {
        f'vllm:external_prefix_cache_hits{suffix}{{engine="0"}}': 5.0,
        f'vllm:external_prefix_cache_hits{suffix}{{engine="1"}}': 6.0,
        f'vllm:prompt_tokens_by_source{suffix}{{source="external_kv_transfer"}}': 9.0,
        f'vllm:prompt_tokens_by_source{suffix}{{source="local_compute"}}': 99.0,
    }
    found = semantics(window)
    assert found["external_prefix_cache_hits"] == 11.0
    assert found["external_kv_transfer_tokens"] == 9.0
    assert found["prefix_cache_hits"] is None
    assert semantic_tokens(found) == 11.0


def test_our_own_servers_counter_is_one_of_them() -> None:
    found = semantics({'semblend:tokens_total{stage="materialized"}': 64.0})
    assert semantic_tokens(found) == 64.0
    assert semantic_tokens(semantics({})) is None


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6)),
)
def test_before_and_window_add_up_to_after(
    before: dict[str, float], growth: dict[str, float]
) -> None:
    after = {key: before.get(key, 0.0) + growth.get(key, 0.0) for key in {*before, *growth}}
    window = delta(snapshot(before), snapshot(after))
    for key, value in after.items():
        assert before.get(key, 0.0) + window[key] == pytest.approx(value)


def test_a_counter_that_fell_spoils_the_window() -> None:
    with pytest.raises(ResultError, match="restarted"):
        delta(snapshot({"x_total": 5.0}), snapshot({"x_total": 4.0}))
    assert delta(snapshot({"gauge": 5.0}), snapshot({"gauge": 4.0})) == {"gauge": -1.0}


def test_snapshots_of_other_endpoints_or_versions_are_refused() -> None:
    with pytest.raises(ResultError, match="different endpoints"):
        delta(snapshot({}), snapshot({}, url="http://b"))
    with pytest.raises(ResultError, match="before: not a snapshot"):
        delta({}, snapshot({}))


def test_snapshot_window_and_result_fit_together(tmp_path: Path) -> None:
    manifest = short_manifest(tmp_path, records=1)
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    window, result = tmp_path / "window.json", tmp_path / "r.json"
    with mock_engine() as url:
        take = ("engine-snapshot", "--metrics-url", f"{url}/metrics", "--output")
        assert sembench(*take, before).exit_code == 0
        run = sembench(
            *("run-live-gateway", "--manifest", manifest, "--output", result),
            *("--gateway-url", url, "--model", "mock-model", "--isolate-by-salt"),
        )
        assert run.exit_code == 0, run.output
        assert sembench(*take, after).exit_code == 0
    done = sembench(
        *("engine-window", "--before", before, "--after", after, "--arm", "warm"),
        *("--output", window, "--result", result),
    )
    assert done.exit_code == 0, done.output
    counted = load_json(window)["prometheus"]["semantics"]["external_kv_transfer_tokens"]
    assert counted > 0
    assert (
        load_json(result)["engine"]["prometheus"]["semantics"]
        == (load_json(window)["prometheus"]["semantics"])
    )
    # What the responses claimed is within what the engine counted.
    gated = sembench("assert-result-gates", "--result", result, "--max-unconfirmed-claim-rate", 0)
    assert gated.exit_code == 0, gated.output
    printed = sembench("engine-window", "--before", before, "--after", after)
    assert json.loads(printed.stdout)["external_kv_transfer_tokens"] == counted


def test_a_page_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    with mock_engine() as url:
        for path in ("/no_such_page", "/health"):
            take = ("engine-snapshot", "--metrics-url", url + path, "--output", tmp_path / "s")
            assert sembench(*take).exit_code == 2
