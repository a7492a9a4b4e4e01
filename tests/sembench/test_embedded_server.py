"""SemBench against the real embedded server: `semblend serve` with the reference model.

The same manifest that the mock engine is tested with in spirit, of documents this small
model answers well, so that time, reuse and answers are all real.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sembench.manifests.files import write_manifest
from sembench.model import DonorPrompt, ManifestItem
from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter, Fact
from tests.sembench.mock_runs import load_json, mock_engine, sembench

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "semblend-reference-27m"
PARAGRAPHS, SENTENCES = 3, 5


def prompt(document: Document, instruction: int, fact: Fact) -> str:
    return f"{INSTRUCTIONS[instruction]}\n\n{document.text}\n\nQuestion: {fact.question}"


def item(name: str, donor: str, recipient: str, answer: str, **more: Any) -> ManifestItem:
    negative = more.pop("negative_control", False)
    return ManifestItem(
        item_id=name,
        dataset="facts",
        source_id=name,
        transform=name.rstrip("0123456789"),
        donor_prompts=(DonorPrompt(donor_id=f"{name}-donor", text=donor, label="base_prompt"),),
        recipient_prompt=recipient,
        answers=(answer,),
        negative_control=negative,
        metadata=more,
    )


def items() -> Iterator[ManifestItem]:
    writer = DocumentWriter(11)
    for number in range(2):
        document = writer.document(paragraphs=PARAGRAPHS, sentences=SENTENCES, facts=3)
        other = writer.document(paragraphs=PARAGRAPHS, sentences=SENTENCES, facts=3)
        first, second, _ = document.facts
        swapped = document.with_facts(
            {
                first: Fact(attribute=first.attribute, subject=first.subject, value=second.value),
                second: Fact(attribute=second.attribute, subject=second.subject, value=first.value),
            }
        )
        target = prompt(document, 2, first)
        yield item(f"instruction_variant{number}", prompt(document, 0, second), target, first.value)
        yield item(f"exact_repeat{number}", target, target, first.value)
        yield item(
            f"entity_swap_control{number}",
            prompt(swapped, 2, first),
            target,
            first.value,
            divergent_donor_value=second.value,
        )
        yield item(
            f"negative_control{number}",
            prompt(other, 4, other.facts[0]),
            target,
            first.value,
            negative_control=True,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not MODEL.is_dir():
        pytest.fail("the bundled reference model is missing: models/semblend-reference-27m")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "server.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "semblend.cli.main", "serve", str(MODEL)),
                *("--port", str(port), "--public-metrics", "--trust-tenant-header"),
                *("--allow-uncertified", "--pool-mib", "256", "--donor-mib", "256"),
            ],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SEMBLEND_EMBEDDER": "none"},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 240
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                try:
                    if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "facts.jsonl"
    write_manifest(path, items())
    return path


@pytest.fixture(scope="module")
def result(server: str, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("result") / "r.json"
    done = sembench(
        *("run-live-gateway", "--manifest", manifest, "--output", output),
        *("--base-url", server, "--tokenizer", MODEL, "--max-tokens", 24),
        *("--paired", "--isolate-by-salt", "--contamination-check", "--capture-logprobs"),
        *("--warmup-requests", 1, "--metrics-url", f"{server}/metrics"),
        # No delay: donors are stored off the request path, and the run waits for them.
    )
    assert done.exit_code == 0, done.output
    return output


def by_transform(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in load_json(path)["requests"]:
        found.setdefault(row["transform"], []).append(row)
    return found


def test_the_model_is_asked_for_and_reuse_is_confirmed_by_the_responses(result: Path) -> None:
    data = load_json(result)
    assert data["config"]["model"] == MODEL.name
    assert data["config"]["engine_counters"] is True
    assert {row["confirmed_by"] for row in data["requests"]} == {"response"}
    assert data["aggregate"]["backend_confirmed_block_rate"] > 0


def test_reuse_is_where_the_manifest_has_it_and_nowhere_else(result: Path) -> None:
    rows = by_transform(result)
    for row in rows["instruction_variant"]:
        assert row["fuzzy_confirmed_tokens"] > 0.5 * row["engine_prompt_tokens"]
    for row in rows["exact_repeat"]:
        assert row["exact_confirmed_tokens"] > 0.8 * row["engine_prompt_tokens"]
        assert row["fuzzy_confirmed_tokens"] == 0
    for row in rows["negative_control"]:
        assert row["fuzzy_confirmed_tokens"] == 0


def test_every_cold_half_was_cold_and_every_answer_is_the_cold_one(result: Path) -> None:
    paired = load_json(result)["paired"]
    assert paired["excluded_pairs"] == 0
    assert paired["cold_quality_pass_rate"] == 1.0
    assert paired["warm_quality_pass_rate"] == 1.0
    assert paired["warm_vs_cold_kl_mean"] is not None


def test_the_real_server_passes_the_gates_that_catch_cheats(result: Path) -> None:
    gated = sembench(
        *("assert-result-gates", "--result", result, "--min-quality-pass-rate", 0.8),
        *("--min-backend-confirmed-block-rate", 0.2, "--require-contamination-check"),
        *("--max-negative-control-confirmed-rate", 0.0, "--max-donor-fact-leak-rate", 0.0),
        *("--max-unconfirmed-claim-rate", 0.0, "--max-request-error-rate", 0.0),
    )
    verdict = json.loads(gated.stdout)
    assert verdict["failures"] == []
    assert gated.exit_code == 0


def test_exact_figures_are_the_same_on_the_mock_and_the_real_server(
    manifest: Path, result: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mock.json"
    with mock_engine() as url:
        done = sembench(
            *("run-live-gateway", "--manifest", manifest, "--output", output),
            *("--gateway-url", url, "--model", "mock-model", "--tokenizer", MODEL),
            *("--paired", "--isolate-by-salt"),
        )
        assert done.exit_code == 0, done.output
    names = ("item_id", "prompt_tokens", "total_blocks", "exact_blocks", "exact_block_hit_rate")

    def figures(path: Path) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in load_json(path)["requests"]]

    assert figures(output) == figures(result)
    mock, real = load_json(output)["aggregate"], load_json(result)["aggregate"]
    assert mock["exact_block_hit_rate"] == real["exact_block_hit_rate"]


def test_the_endpoint_verifies_and_counts_what_it_did(server: str, tmp_path: Path) -> None:
    ask = ("verify-endpoint", "--base-url", server, "--expect-model", MODEL.name)
    nameless = sembench(*ask)
    assert nameless.exit_code == 2
    assert "x-tenant-id" in str(nameless.exception), "the server says what it misses"
    done = sembench(*ask, "--tenant", "t")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["reports"]["semantic_reuse"] is True
    snapshot = tmp_path / "s.json"
    take = ("engine-snapshot", "--metrics-url", f"{server}/metrics", "--output", snapshot)
    assert sembench(*take).exit_code == 0


def test_a_conversation_is_played_live_in_the_engines_own_tokens(
    server: str, tmp_path: Path
) -> None:
    output, again = tmp_path / "turns.json", tmp_path / "again.json"
    run = ("run-turns", "--base-url", server, "--profile", "chat", "--conversations", 1)
    more = ("--turns", 4, "--max-tokens", 8, "--tenant", "t", "--scripted-answers")
    done = sembench(*run, *more, "--output", output)
    assert done.exit_code == 0, done.output
    for row in load_json(output)["requests"]:
        assert row["error"] is None
        assert row["prompt_tokens"] == row["engine_prompt_tokens"], "counted with /tokenize"
        assert row["confirmed_by"] == "response"
        assert row["prefix_tokens"] <= row["oracle_tokens"]
        told = row["exact_tokens"] + row["reused_tokens"] + (row["continued_tokens"] or 0)
        assert row["computed_tokens"] == row["engine_prompt_tokens"] - told
    aggregate = load_json(output)["aggregate"]
    assert aggregate["engine_computes"] < aggregate["prompt_tokens"]
    done = sembench(*run, *more, "--output", again, "--baseline", output)
    assert done.exit_code == 0, done.output
    compared = load_json(again)["baseline"]
    assert compared["turns"] == 4
    assert compared["ttft_ratio_median"] > 0


def test_an_agents_tools_and_results_are_taken(server: str, tmp_path: Path) -> None:
    done = sembench(
        *("run-turns", "--base-url", server, "--profile", "agent", "--conversations", 1),
        *("--compactions", 0, "--max-tokens", 4, "--tenant", "t", "--donor-wait-ms", 200),
        *("--output", tmp_path / "turns.json"),
    )
    assert done.exit_code == 0, done.output
    rows = load_json(tmp_path / "turns.json")["requests"]
    assert {row["error"] for row in rows} == {None}
    assert {"opening", "tool_result", "follow_up"} <= {row["kind"] for row in rows}
