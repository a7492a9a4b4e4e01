"""Live commands end to end against the mock engine: pairs, isolation, resuming, failing well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sembench.manifests.files import read_manifest
from sembench.mock_engine import MockFault
from tests.sembench.mock_runs import (
    load_json,
    mock_engine,
    sembench,
    sembench_process,
    short_manifest,
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_manifest(tmp_path_factory.mktemp("manifest"))


def gateway(manifest: Path, output: Path, url: str, *more: object) -> Any:
    return sembench(
        "run-live-gateway",
        *("--manifest", manifest, "--output", output, "--gateway-url", url),
        *("--model", "mock-model", *more),
    )


def sglang(manifest: Path, output: Path, url: str, *more: object) -> Any:
    return sembench(
        "run-live-sglang",
        *("--manifest", manifest, "--output", output, "--base-url", url),
        *("--model", "mock-model", *more),
    )


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_json(path)["requests"]
    return found


def test_exact_figures_are_the_manifests_own_on_every_protocol_and_offline(
    manifest: Path, tmp_path: Path
) -> None:
    offline, live, native = (tmp_path / f"{name}.json" for name in ("o", "g", "s"))
    done = sembench("run-offline", "--manifest", manifest, "--output", offline, "--planner", "none")
    assert done.exit_code == 0, done.output
    with mock_engine() as url:
        assert gateway(manifest, live, url).exit_code == 0
        assert sglang(manifest, native, url).exit_code == 0
    names = ("item_id", "prompt_tokens", "total_blocks", "exact_blocks", "exact_block_hit_rate")
    figures = [
        sorted(tuple(row[name] for name in names) for row in rows(path))
        for path in (offline, live, native)
    ]
    assert figures[0] == figures[1] == figures[2]


def test_an_engines_exact_hits_never_exceed_what_the_manifest_explains(
    manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    with mock_engine(semantic=False) as url:
        reset = ("--reset-url", f"{url}/flush_cache")
        assert gateway(manifest, output, url, *reset).exit_code == 0
    for row in rows(output):
        # A prefix cache finds no more than the position-free exact blocks of the manifest.
        assert row["exact_confirmed_tokens"] <= row["exact_tokens"]
        assert row["fuzzy_confirmed_tokens"] == 0


def test_items_do_not_serve_one_another_unless_told_to(manifest: Path, tmp_path: Path) -> None:
    apart, together = tmp_path / "apart.json", tmp_path / "together.json"
    with mock_engine() as url:
        assert gateway(manifest, apart, url).exit_code == 0
        assert gateway(manifest, together, url, "--no-isolate-by-salt").exit_code == 0
    assert load_json(apart)["config"]["isolation"] == "salt"
    assert load_json(together)["config"]["isolation"] == "none"
    # A negative control's own document was served before, by other items of the manifest.
    rate = "negative_control_backend_confirmed_rate"
    assert load_json(apart)["aggregate"][rate] == 0.0
    assert load_json(together)["aggregate"][rate] > 0.5


@pytest.mark.parametrize("how", ["reset", "salt"])
def test_a_pair_has_a_cold_half_that_was_cold(manifest: Path, tmp_path: Path, how: str) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as url:
        flags = ("--reset-url", f"{url}/flush_cache") if how == "reset" else ("--isolate-by-salt",)
        done = gateway(manifest, output, url, "--paired", *flags)
    assert done.exit_code == 0, done.output
    for row in rows(output):
        assert row["arm"] == "warm"
        assert row["cold_cached_tokens"] == 0
        assert row["flush_contaminated"] is False
        assert row["cold_output_text"] == row["output_text"]
        assert row["ttft_speedup"] > 0
    paired = load_json(output)["paired"]
    assert paired["pairs"] == len(rows(output))
    assert paired["identical_answer_rate"] == 1.0
    assert paired["hit_pairs"] > 0


def test_a_cold_half_that_was_not_cold_is_seen_and_left_out(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with mock_engine(semantic=True) as url:
        # Every item twice under one salt: the second cold half finds the first one's prefix.
        first = tmp_path / "first.json"
        flags = ("--paired", "--isolate-by-salt", "--run-id", "same")
        assert gateway(manifest, first, url, *flags).exit_code == 0
        assert gateway(manifest, output, url, *flags).exit_code == 0
    paired = load_json(output)["paired"]
    assert paired["pairs"] == 0
    assert paired["excluded_reasons"] == {"flush_contaminated": len(rows(output))}
    assert paired["blended_ttft_speedup_median"] is None


def test_concurrent_items_give_the_rows_of_sequential_ones(manifest: Path, tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    throughput = tmp_path / "throughput.json"
    with mock_engine() as url:
        assert gateway(manifest, one, url, "--isolate-by-salt").exit_code == 0
        done = gateway(
            manifest,
            many,
            url,
            *("--isolate-by-salt", "--concurrency", 4, "--throughput-output", throughput),
        )
        assert done.exit_code == 0, done.output
    names = ("item_id", "cached_tokens", "output_text", "quality_pass")

    def seen(path: Path) -> set[tuple[Any, ...]]:
        return {tuple(row[name] for name in names) for row in rows(path)}

    assert seen(one) == seen(many)
    assert load_json(throughput)["completed"] == len(rows(many))


def test_donors_keep_their_distance_where_asked(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as url:
        done = gateway(manifest, output, url, "--min-donor-gap-requests", 3, "--tenant", "gap")
    assert done.exit_code == 0, done.output
    gaps = [row["donor_gap_requests"] for row in rows(output)]
    assert len(gaps) == len(list(read_manifest(manifest)))
    # Only the last recipients, with nothing left to send between, may be closer.
    assert all(gap >= 3 for gap in gaps[:-3])


def test_workers_take_turns_with_donors(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as gateway_url, mock_engine() as first, mock_engine() as second:
        workers = ("--worker-url", first, second)
        done = gateway(manifest, output, gateway_url, *workers)
        assert done.exit_code == 0, done.output
    # Donors went elsewhere, so the gateway's engine has nothing to reuse for first recipients.
    assert rows(output)[0]["cached_tokens"] == 0
    assert rows(output)[0]["donor_worker_ids"]


def test_a_router_is_seen_by_its_header(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with mock_engine(router=True) as url:
        gateway(manifest, output, url, "--isolate-by-salt")
    data = load_json(output)
    assert data["aggregate"]["semantic_placement_rate_by_request"] > 0
    assert data["aggregate"]["negative_control_semantic_placement_rate"] == 0.0


def test_audit_records_are_joined_to_their_rows(manifest: Path, tmp_path: Path) -> None:
    output, audit = tmp_path / "r.json", tmp_path / "audit.jsonl"
    with mock_engine(audit_path=audit) as url:
        done = gateway(manifest, output, url, "--isolate-by-salt", "--connector-audit", audit)
    assert done.exit_code == 0, done.output
    for row in rows(output):
        assert row["external_confirmed_tokens_source"] == "connector_audit"
        assert row["audit_materialized_tokens"] == row["fuzzy_confirmed_tokens"]
        assert (row["audit_outcome"] == "materialised") is (row["claimed_reuse_tokens"] > 0)
        assert not (row["negative_control"] and row["claimed_reuse_tokens"])


def test_log_probabilities_give_a_divergence_of_zero_between_equal_arms(
    manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as url:
        done = sglang(
            manifest, output, url, "--paired", "--capture-logprobs", "--top-logprobs-num", 4
        )
    assert done.exit_code == 0, done.output
    assert load_json(output)["paired"]["warm_vs_cold_kl_mean"] == 0.0
    assert all(row["output_token_ids"] for row in rows(output))


def test_two_arms_run_apart_merge_into_a_pair(manifest: Path, tmp_path: Path) -> None:
    cold, warm, both = (tmp_path / f"{name}.json" for name in ("cold", "warm", "both"))
    with mock_engine() as url:
        assert sglang(manifest, cold, url, "--arm", "cold").exit_code == 0
        assert sglang(manifest, warm, url, "--arm", "warm", "--max-items", 7).exit_code == 0
    merge = ("merge-results", "--cold", cold, "--warm", warm, "--output", both)
    assert sembench(*merge).exit_code == 2
    done = sembench(*merge, "--allow-unpaired")
    assert done.exit_code == 0, done.output
    paired = load_json(both)["paired"]
    assert paired["pairs"] == 7
    assert paired["identical_answer_rate"] == 1.0
    assert load_json(both)["config"]["unpaired_items"] == 3


def test_arms_of_different_manifests_do_not_merge(manifest: Path, tmp_path: Path) -> None:
    other = short_manifest(tmp_path, records=1)
    cold, warm = tmp_path / "cold.json", tmp_path / "warm.json"
    with mock_engine() as url:
        assert sglang(manifest, cold, url, "--arm", "cold").exit_code == 0
        assert sglang(other, warm, url, "--arm", "warm").exit_code == 0
    merge = ("merge-results", "--cold", cold, "--warm", warm, "--output", tmp_path / "m.json")
    assert sembench(*merge, "--allow-unpaired").exit_code == 2


def test_a_failing_request_is_a_row_with_an_error_and_the_run_goes_on(
    manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    with mock_engine(fault=MockFault.DISCONNECT, fault_every=5) as url:
        done = gateway(manifest, output, url, "--skip-verify")
    assert done.exit_code == 0, done.output
    failed = [row for row in rows(output) if row["error"]]
    assert failed
    assert len(failed) < len(rows(output))
    assert load_json(output)["aggregate"]["errors"] == len(failed)
    assert all(row["ttft_ms"] is None or "donor" in row["error"] for row in failed)


def test_an_endpoint_that_went_away_stops_the_run_and_resuming_measures_the_rest(
    manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    with mock_engine(fault=MockFault.ERROR, fault_every=1) as url:
        flags = ("--skip-verify", "--max-consecutive-errors", 3)
        assert gateway(manifest, output, url, *flags).exit_code == 2
    assert not output.exists()
    with mock_engine() as url:
        done = gateway(manifest, output, url, "--resume")
        assert done.exit_code == 0, done.output
    assert len(rows(output)) == len(list(read_manifest(manifest)))
    assert not any(row["error"] for row in rows(output))


def test_a_killed_run_is_taken_up_where_it_was(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    spool = tmp_path / "r.json.partial.jsonl"
    with mock_engine(prefill_ms_per_token=0.2) as url:
        arguments = [
            *("run-live-gateway", "--manifest", str(manifest), "--output", str(output)),
            *("--gateway-url", url, "--model", "mock-model", "--isolate-by-salt"),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "sembench", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            deadline = time.monotonic() + 60
            while not (spool.exists() and spool.read_bytes().count(b"\n") >= 4):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not output.exists()
        before = [json.loads(line) for line in spool.read_text().splitlines()[1:4]]
        # The kill may have cut a row short; so does this.
        with spool.open("a") as stream:
            stream.write('{"item_id": "cut sho')
        resumed = sembench_process(*arguments, "--resume")
        assert resumed.returncode == 0, resumed.stderr
    after = {row["item_id"]: row for row in rows(output)}
    assert len(after) == len(rows(output)) == len(list(read_manifest(manifest)))
    for row in before:
        assert after[row["item_id"]]["request_id"] == row["request_id"]
        assert after[row["item_id"]]["ttft_ms"] == row["ttft_ms"]
    assert len({row["request_id"].split("-")[1] for row in after.values()}) == 1
    assert not spool.exists()


def test_the_engines_counters_around_a_run_are_in_the_result(
    manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as url:
        flags = ("--isolate-by-salt", "--metrics-url", f"{url}/metrics", "--engine-env", "A=b=c")
        done = gateway(manifest, output, url, *flags)
        assert done.exit_code == 0, done.output
    engine = load_json(output)["engine"]
    claimed = sum(row["claimed_reuse_tokens"] for row in rows(output))
    assert engine["prometheus"]["semantics"]["external_kv_transfer_tokens"] >= claimed > 0
    assert engine["flags"]["env"] == {"A": "b=c"}
    assert engine["phase0_flags_ok"] is None


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("", 3),
        ("vllm serve m --speculative-config {}", 3),
        ("python -m sglang.launch_server --model-path m", 3),
        ("""vllm serve m --kv-transfer-config '{"kv_connector": "C"}'""", 3),
        (
            "vllm serve m --kv-transfer-config="
            """'{"kv_connector": "C", "kv_load_failure_policy": "recompute"}'""",
            0,
        ),
    ],
)
def test_flags_that_spoil_a_comparison_are_refused_with_their_own_exit_code(
    manifest: Path, tmp_path: Path, command: str, code: int
) -> None:
    with mock_engine() as url:
        flags = ("--require-phase0-flags", "--engine-serve-command", command, "--max-items", 1)
        assert gateway(manifest, tmp_path / "r.json", url, *flags).exit_code == code


@pytest.mark.parametrize(
    "flags",
    [
        ("--paired", "--no-isolate-by-salt"),
        ("--paired", "--arm", "warm", "--isolate-by-salt"),
        ("--reset-url", "http://x", "--concurrency", 2),
        ("--min-donor-gap-requests", 2, "--concurrency", 2),
        ("--route", "telegraph"),
        ("--engine-env", "novalue"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    manifest: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    with mock_engine() as url:
        assert gateway(manifest, tmp_path / "r.json", url, *flags).exit_code == 2


def test_a_wrong_model_is_found_before_anything_is_measured(manifest: Path, tmp_path: Path) -> None:
    with mock_engine(model="another") as url:
        assert gateway(manifest, tmp_path / "r.json", url).exit_code == 2
        assert sglang(manifest, tmp_path / "s.json", url).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_reset_that_is_refused_stops_the_run(manifest: Path, tmp_path: Path) -> None:
    with mock_engine() as url:
        flags = ("--paired", "--reset-url", f"{url}/no_such_path")
        assert gateway(manifest, tmp_path / "r.json", url, *flags).exit_code == 2


def test_secrets_do_not_reach_the_result(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with mock_engine() as url:
        done = sembench_process(
            *("run-live-gateway", "--manifest", manifest, "--output", output),
            *("--gateway-url", url, "--model", "mock-model", "--max-items", 1),
            *("--api-key", "sk-very-secret", "--engine-env", "HF_TOKEN=sk-very-secret"),
        )
    assert done.returncode == 0, done.stderr
    assert "sk-very-secret" not in output.read_text()
