"""`semblend certify --engine vllm`: measured by requests, and the connector accepts the result."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from semblend.cli import certify_until_sure
from semblend.cli.main import app
from semblend.planning.certificates import Certificate
from semblend.planning.policies.base import policy_from_spec
from tests.integration.models import REFERENCE, random_tokens

SAFE = "depth_shift(span_dependents(2, 8) + query_attention(0.05, 16, 'displaced'))"
"""Without a budget: prompts as short as these would be declined."""
SIZE = {"enforce_eager": True, "max_model_len": 2048, "kv_cache_memory_bytes": 128 << 20}
# Wide limits and two workloads: a few items decide, enough to see that all of it works.
WIDE = (
    *("--answers", "0.3", "--disagreement", "0.3", "--confidence", "0.6"),
    *("--length", "400", "--recompute", "0.9", "--redteam-items", "3"),
)

WORKLOADS = ("control_negation", "instruction")


def certify(folder, *arguments):
    return CliRunner().invoke(
        app,
        [
            *("certify", "--engine", "vllm", "--model", str(REFERENCE), "--dtype", "float32"),
            *("--engine-args", json.dumps(SIZE)),
            *("--output", str(folder / "out"), "--records", str(folder / "records")),
            *WIDE,
            *arguments,
        ],
    )


@pytest.fixture
def alone(engines, monkeypatch, tmp_path):
    """No other engine in this process, and variables as they were afterwards."""
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engines.close()
    cells = certify_until_sure._cells
    monkeypatch.setattr(
        certify_until_sure,
        "_cells",
        lambda *given: [cell for cell in cells(*given) if cell.workload in WORKLOADS],
    )
    return tmp_path


@pytest.mark.timeout(900)
def test_a_certificate_measured_inside_vllm_is_served_by_vllm(alone, engines, monkeypatch):
    result = certify(alone, "--policy", SAFE)
    assert result.exit_code == 0, result.output[-3000:]
    (path,) = (alone / "out").glob("*.json")
    certificate = Certificate.from_json(path.read_text())
    engine = certificate.data["engine"]
    assert engine["name"] == "vllm"
    assert (engine["quantisation"], engine["kv_format"]) == ("none", "float32")
    assert certificate.architecture == engine["architecture"] == "LlamaForCausalLM"
    assert certificate.speculation == certificate.kv_format == "none"
    assert "lower bound" in engine["method"]
    assert certificate.versions["vllm"]
    sure = certificate.figures["confidence"]
    assert sure["false_pass_at_most"] == 0.4
    assert {row["answer"] for row in sure["workloads"]} == {"kept"}
    assert {row["workload"] for row in sure["workloads"]} == set(WORKLOADS)
    redteam = certificate.figures["redteam"]
    assert redteam["items"] >= certificate.bound["redteam_items"] == 3
    assert redteam["leaks"] == 0
    assert list((alone / "records").rglob("redteam-*.jsonl")), "a search can go on"
    # Naive reuse has to fail for that to mean anything.
    naive = {row["workload"]: row for row in certificate.figures["naive"]}
    assert naive["control_negation"]["towards_donor"] > 0

    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(alone / "out"))
    served = engines.make(
        "reference",
        mode="segmented",
        engine=SIZE,
    )
    setup = served.scheduler.setup
    assert setup.certified
    assert setup.standing.certificate == certificate
    assert setup.standing.policy == policy_from_spec(SAFE).spec


@pytest.mark.timeout(600)
def test_naive_reuse_is_refused_by_the_first_control_and_nothing_is_written(alone):
    result = certify(alone, "--policy", "none")
    assert result.exit_code == 1
    assert "no certificate" in result.output
    assert not list((alone / "out").glob("*.json"))


def test_k_v_of_a_donor_comes_from_the_workers_as_at_position_0(engines):
    engine = engines.make("llama")
    tokens = random_tokens(200, seed=77)
    engine.donate(tokens)
    (kv,) = engine.llm.collective_rpc("kv_of_donor", args=(tokens.tolist(),))
    assert kv.shape[2] == len(tokens)
    answer = engine.cold(tokens)
    stored = engine.kv(answer, 0, 200).float()
    # V stands as it was computed; K at position 0 needs no rotation, the others differ.
    torch.testing.assert_close(kv[:, 1], stored[:, 1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kv[:, 0, 0], stored[:, 0, 0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(kv[:, 0, 100], stored[:, 0, 100], atol=1e-5)
    (nothing,) = engine.llm.collective_rpc("kv_of_donor", args=([1, 2, 3],))
    assert nothing is None
