"""Every way to cheat is caught by a named gate, and honesty passes the very same gates.

The runs are real: manifest, HTTP, engine log, metrics, gates. Engine and client share a
virtual clock that only simulated compute moves, so that times are exact and the ratios
judged here do not depend on how busy the machine is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from sembench.clock import use_clock
from sembench.mock_engine import Cheat, LogFormat
from tests.sembench.mock_runs import load_json, mock_engine, sembench, short_manifest
from tests.sembench.virtual_clock import VirtualClock

GATES = (
    "--min-quality-pass-rate",
    0.8,
    "--min-backend-confirmed-block-rate",
    0.05,
    "--min-materialization-events",
    1,
    "--min-materialized-tokens",
    512,
    "--min-materialized-units",
    1,
    "--max-negative-control-confirmed-rate",
    0.0,
    "--require-materialized-reuse",
    "--require-no-engine-errors",
    "--min-blended-ttft-speedup",
    3.0,
    "--max-negative-control-speedup-deviation",
    0.001,
    "--require-contamination-check",
    "--max-warm-vs-cold-rouge-drop",
    0.05,
    "--max-donor-fact-leak-rate",
    0.0,
    "--max-unconfirmed-claim-rate",
    0.0,
    "--max-request-error-rate",
    0.0,
)
CAUGHT_BY = {
    Cheat.CLAIM_REUSE: {
        "max_unconfirmed_claim_rate",
        "require_materialized_reuse",
        "min_materialized_tokens",
        "min_blended_ttft_speedup",
    },
    Cheat.LEAK_DONOR_FACTS: {"max_donor_fact_leak_rate", "max_warm_vs_cold_rouge_drop"},
    Cheat.POISON_EXACT_CACHE: {"require_contamination_check"},
    Cheat.FAST_NEGATIVES: {"max_negative_control_speedup_deviation"},
    Cheat.MISSING_METRICS: {
        "min_backend_confirmed_block_rate",
        "max_negative_control_confirmed_rate",
        "max_unconfirmed_claim_rate",
    },
}


@dataclass(frozen=True)
class Judged:
    exit_code: int
    verdict: dict[str, object]
    result: Path
    summary: Path

    @property
    def failed(self) -> set[str]:
        return set(self.verdict["failed_gates"])  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_manifest(tmp_path_factory.mktemp("manifest"))


def judge(folder: Path, manifest: Path, cheat: Cheat) -> Judged:
    log, result, summary = folder / "engine.txt", folder / "result.json", folder / "summary.json"
    clock = VirtualClock()
    engine = mock_engine(cheat=cheat, prefill_ms_per_token=1.0, log_path=log, clock=clock)
    with engine as url, use_clock(clock):
        metrics = () if cheat is Cheat.MISSING_METRICS else ("--metrics-url", f"{url}/metrics")
        ran = sembench(
            "run-live-gateway",
            *("--manifest", manifest, "--output", result, "--gateway-url", url),
            *("--model", "mock-model", "--paired", "--reset-url", f"{url}/flush_cache"),
            *("--contamination-check", "--warmup-requests", 1, *metrics),
        )
        assert ran.exit_code == 0, ran.output
    done = sembench(
        "summarize-engine-events", "--engine", "vllm", "--input", log, "--output", summary
    )
    assert done.exit_code == 0, done.output
    gated = sembench("assert-result-gates", "--result", result, "--engine-summary", summary, *GATES)
    return Judged(
        exit_code=gated.exit_code,
        verdict=json.loads(gated.stdout),
        result=result,
        summary=summary,
    )


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, manifest: Path) -> Judged:
    return judge(tmp_path_factory.mktemp("honest"), manifest, Cheat.NONE)


def test_an_honest_engine_passes_every_gate(honest: Judged) -> None:
    assert honest.verdict["failures"] == []
    assert honest.verdict["missing_metrics"] == []
    assert honest.exit_code == 0


@pytest.mark.parametrize("cheat", [cheat for cheat in Cheat if cheat is not Cheat.NONE])
def test_a_cheating_engine_is_caught_by_name(
    tmp_path: Path, manifest: Path, honest: Judged, cheat: Cheat
) -> None:
    judged = judge(tmp_path, manifest, cheat)
    assert judged.exit_code == 1
    assert CAUGHT_BY[cheat] <= judged.failed, judged.verdict["failures"]
    assert not CAUGHT_BY[cheat] & honest.failed


def test_a_doctored_aggregate_is_caught(tmp_path: Path, honest: Judged) -> None:
    data = load_json(honest.result)
    data["aggregate"]["backend_confirmed_block_rate"] = 0.99
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(data))
    gated = sembench("assert-result-gates", "--result", forged)
    assert gated.exit_code == 1
    assert "aggregate_consistent" in json.loads(gated.stdout)["failed_gates"]


def test_confirmation_of_other_requests_does_not_cover_a_claim(
    tmp_path: Path, honest: Judged
) -> None:
    data = load_json(honest.summary)
    data["materialized_tokens_by_request"] = {"somebody-else": data["materialized_tokens"]}
    forged = tmp_path / "summary.json"
    forged.write_text(json.dumps(data))
    gated = sembench(
        *("assert-result-gates", "--result", honest.result, "--engine-summary", forged),
        *("--max-unconfirmed-claim-rate", 0.0),
    )
    assert json.loads(gated.stdout)["failed_gates"] == ["max_unconfirmed_claim_rate"]


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_the_mocks_log_of_any_format_confirms_what_its_responses_claim(
    tmp_path: Path, manifest: Path, log_format: LogFormat
) -> None:
    log, result, summary = tmp_path / "log.txt", tmp_path / "r.json", tmp_path / "s.json"
    with mock_engine(log_path=log, log_format=log_format) as url:
        ran = sembench(
            "run-live-sglang",
            *("--manifest", manifest, "--output", result, "--base-url", url),
            *("--model", "mock-model", "--max-items", 4),
        )
        assert ran.exit_code == 0, ran.output
    engine = log_format.value
    sembench("summarize-engine-events", "--engine", engine, "--input", log, "--output", summary)
    claimed = sum(row["claimed_reuse_tokens"] for row in load_json(result)["requests"])
    counted = load_json(summary)
    assert counted["materialized_semantic_kv_reuse"] is True
    assert claimed > 0
    # Donors of a multi-donor item may reuse from one another: the log has those tokens too.
    assert counted["materialized_tokens"] >= claimed
