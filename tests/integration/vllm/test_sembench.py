"""SemBench against real, unmodified vLLM on a CPU: what it confirms, and what it cannot."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sembench.manifests.files import write_manifest
from tests.integration.vllm.engines import WORKER
from tests.sembench.mock_runs import load_json, mock_engine, sembench
from tests.sembench.test_embedded_server import MODEL, items

BLOCK = 32
"""vLLM's attention on CPUs takes blocks of a multiple of 32."""


@contextmanager
def vllm(folder: Path, *more: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "vllm.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(MODEL)),
                *("--served-model-name", MODEL.name, "--port", str(port), "--dtype", "float32"),
                *("--enforce-eager", "--max-model-len", "2048", "--block-size", str(BLOCK)),
                *more,
            ],
            stdout=stream,
            stderr=stream,
            cwd=log.parent,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 240
            while True:
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                try:
                    if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm(tmp_path_factory.mktemp("vllm"), "--enable-prompt-tokens-details") as url:
        yield url


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "facts.jsonl"
    write_manifest(path, items())
    return path


def replay(url: str, manifest: Path, output: Path, *more: object, model: str = MODEL.name) -> Path:
    done = sembench(
        *("run-live-gateway", "--manifest", manifest, "--output", output),
        *("--base-url", url, "--model", model, "--tokenizer", MODEL),
        *("--block-size", BLOCK, "--paired", "--max-tokens", 16, *more),
    )
    assert done.exit_code == 0, done.output
    return output


@pytest.fixture(scope="module")
def result(server: str, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replay(
        server,
        manifest,
        tmp_path_factory.mktemp("result") / "r.json",
        *("--contamination-check", "--capture-logprobs", "--warmup-requests", 1),
        *("--metrics-url", f"{server}/metrics"),
    )


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_json(path)["requests"]
    return found


def test_salts_keep_its_prefix_cache_apart_and_it_confirms_exact_hits(result: Path) -> None:
    assert load_json(result)["config"]["isolation"] == "salt"
    for row in rows(result):
        assert row["error"] is None
        assert row["flush_contaminated"] is False
        assert row["request_id"] in row["engine_request_id"]
        # No more than the exact blocks of the manifest and of the template explain.
        assert row["exact_confirmed_tokens"] <= row["exact_tokens"] + BLOCK
        if row["transform"] == "exact_repeat":
            assert row["exact_confirmed_tokens"] > 0.8 * row["engine_prompt_tokens"]
        if row["negative_control"]:
            assert row["exact_confirmed_tokens"] == 0


def test_it_answers_the_same_warm_and_cold(result: Path) -> None:
    paired = load_json(result)["paired"]
    assert paired["excluded_pairs"] == 0
    assert paired["identical_answer_rate"] == 1.0
    assert paired["propagation_contamination_rate"] == 0.0


def test_exact_figures_are_the_mocks(result: Path, manifest: Path, tmp_path: Path) -> None:
    with mock_engine(block_size=BLOCK) as url:
        mock = replay(url, manifest, tmp_path / "mock.json", model="mock-model")
    names = ("item_id", "prompt_tokens", "exact_blocks", "exact_block_hit_rate")
    figures = [
        [tuple(row[name] for name in names) for row in rows(path)] for path in (mock, result)
    ]
    assert figures[0] == figures[1]


def test_a_reset_between_arms_works_as_well(server: str, manifest: Path, tmp_path: Path) -> None:
    reset = ("--reset-url", f"{server}/reset_prefix_cache", "--max-items", 4)
    path = replay(server, manifest, tmp_path / "r.json", *reset)
    assert load_json(path)["paired"]["excluded_pairs"] == 0


def test_semantic_reuse_cannot_be_claimed_for_an_engine_that_has_none(result: Path) -> None:
    gated = sembench(
        *("assert-result-gates", "--result", result, "--max-negative-control-confirmed-rate", 0),
        *("--require-materialized-reuse", "--max-unconfirmed-claim-rate", 0),
        "--require-contamination-check",
    )
    verdict = json.loads(gated.stdout)
    assert verdict["failed_gates"] == ["require_materialized_reuse", "max_unconfirmed_claim_rate"]
    assert set(verdict["missing_metrics"]) == {"materialized_reuse", "unconfirmed_claim_rate"}


def test_reuse_by_our_connector_is_confirmed_by_the_engines_counters(
    manifest: Path, tmp_path: Path
) -> None:
    """vLLM's streams say nothing of reuse, and this server counts no cached tokens either."""
    transfer = {
        "kv_connector": "SemBlendVllmConnector",
        "kv_connector_module_path": "semblend_vllm_connector.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "mode": "segmented_experimental",
            "min_prompt_tokens": 64,
            "recompute_policy": "span_head(8)",
        },
    }
    more = (f"--worker-cls={WORKER}", "--kv-transfer-config", json.dumps(transfer))
    with vllm(tmp_path, *more) as url:
        done = sembench(
            *("run-live-gateway", "--manifest", manifest, "--output", tmp_path / "r.json"),
            *("--base-url", url, "--tokenizer", MODEL, "--block-size", BLOCK),
            *("--paired", "--isolate-by-salt", "--max-tokens", 16),
            *("--metrics-url", f"{url}/metrics"),
        )
        assert done.exit_code == 0, done.output
        played = sembench(
            *("run-turns", "--base-url", url, "--profile", "chat", "--conversations", 2),
            *("--turns", 2, "--max-tokens", 8, "--output", tmp_path / "turns.json"),
        )
        assert played.exit_code == 0, played.output
    for turn in rows(tmp_path / "turns.json"):
        assert turn["error"] is None
        assert turn["confirmed_by"] == "counters"
        assert turn["prompt_tokens"] == turn["engine_prompt_tokens"], "counted with /tokenize"
    assert "backend-confirmed block rate             not measured" not in done.output
    for row in rows(tmp_path / "r.json"):
        assert row["confirmed_by"] == "counters"
        if row["transform"] == "instruction_variant":
            assert row["fuzzy_confirmed_tokens"] > 0.5 * row["engine_prompt_tokens"]
        if row["negative_control"]:
            assert row["fuzzy_confirmed_tokens"] == 0
    gated = sembench(
        *("assert-result-gates", "--result", tmp_path / "r.json"),
        *("--min-backend-confirmed-block-rate", 0.2, "--max-unconfirmed-claim-rate", 0),
    )
    assert json.loads(gated.stdout)["failures"] == []
