"""`semblend doctor vllm` says what a start would do, before it is made."""

from __future__ import annotations

import json

import pytest
import transformers
from typer.testing import CliRunner
from vllm.platforms.cpu import CpuPlatform

from semblend.cli.doctor import doctor
from tests.integration.models import REFERENCE, folder_of


def ask(*arguments):
    result = CliRunner().invoke(doctor, ["vllm", *arguments, "--json"])
    line = next(line for line in result.stdout.splitlines() if line.startswith("{"))
    return result.exit_code, json.loads(line)


def verdicts(answer):
    return {finding["check"]: finding["verdict"] for finding in answer["findings"]}


def test_a_supported_installation_is_fine():
    code, answer = ask(str(REFERENCE), "--dtype", "float32")
    assert code == 0
    assert answer["ok"]
    found = verdicts(answer)
    # A note where this tree is on the path beside another that is installed.
    assert found.pop("semblend") in ("ok", "note")
    assert found == {
        "vLLM": "ok",
        "platform": "ok",
        "mode": "ok",
        "execution": "ok",
        "architecture": "ok",
        "model": "ok",
        "certificate": "ok",
        "budget": "ok",
    }


def test_without_a_certificate_the_command_that_helps_is_printed(monkeypatch):
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", "none")
    code, answer = ask(str(REFERENCE), "--dtype", "float32")
    assert code == 1
    (step,) = [f["detail"] for f in answer["findings"] if f["check"] == "next"]
    assert f"semblend certify --model {REFERENCE}" in step


def test_without_the_worker_class_segmented_is_refused_with_the_remedy():
    code, answer = ask(str(REFERENCE), "--dtype", "float32", "--worker-cls", "auto")
    assert code == 1
    assert any("--worker-cls" in finding["detail"] for finding in answer["findings"])


@pytest.mark.parametrize("policy", ["fail", None])
def test_a_failure_policy_that_fails_requests_is_refused(policy):
    config = {
        "kv_connector": "SemBlendConnectorV1",
        "kv_connector_module_path": "semblend.integration.vllm.connector_v1",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"mode": "exact_prefix"},
    }
    if policy is not None:
        config["kv_load_failure_policy"] = policy
    arguments = (str(REFERENCE), "--dtype", "float32", "--kv-transfer-config", json.dumps(config))
    code, answer = ask(*arguments)
    assert code == 1
    assert any("kv_load_failure_policy" in finding["detail"] for finding in answer["findings"])


def test_a_typing_mistake_is_named():
    config = {"kv_connector_extra_config": {"mod": "segmented"}}
    code, answer = ask("--kv-transfer-config", json.dumps(config))
    assert code == 1
    assert verdicts(answer)["configuration"] == "refused"
    assert any("did you mean mode" in finding["detail"] for finding in answer["findings"])


def test_a_model_that_is_not_there_is_said():
    code, answer = ask("/nowhere/at/all")
    assert code == 1
    assert verdicts(answer)["model"] == "refused"


def test_an_option_that_replaces_the_connector_is_refused_by_name():
    code, answer = ask("--kv-offloading-size", "4")
    assert code == 1
    (finding,) = [f for f in answer["findings"] if f["check"] == "connector"]
    assert finding["verdict"] == "refused"
    assert "--kv-offloading-size" in finding["detail"]


@pytest.mark.parametrize(
    ("model", "said"),
    [("qwen3-moe", "Qwen3-MoE): tested; mixture of experts"), ("phi3-long", "Phi-4-mini")],
)
def test_a_model_of_the_table_is_described(model, said):
    _, answer = ask(folder_of(model), "--mode", "segmented_experimental")
    details = {finding["check"]: finding["detail"] for finding in answer["findings"]}
    assert said in details["architecture"]
    assert "nothing is refused" in details["model"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (transformers.Qwen3NextConfig(), "Qwen3NextForCausalLM (some layers hold one running"),
        (transformers.GraniteConfig(), "GraniteForCausalLM (not tested"),
    ],
    ids=["qwen3-next", "granite"],
)
def test_a_model_that_is_refused_is_refused_with_the_reason(tmp_path, config, said):
    """From its configuration alone: nothing else of it is here."""
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    code, answer = ask(str(tmp_path), "--mode", "segmented_experimental")
    assert code == 1
    refused = [f["detail"] for f in answer["findings"] if f["verdict"] == "refused"]
    assert any(said in detail for detail in refused), refused


@pytest.mark.parametrize("hybrid", [True, False])
def test_windows_under_the_hybrid_manager_get_the_flag_to_set(monkeypatch, hybrid):
    """CPUs have no such manager; GPUs have it unless told otherwise."""
    monkeypatch.setattr(CpuPlatform, "support_hybrid_kv_cache", classmethod(lambda _: hybrid))
    _, answer = ask(folder_of("gemma2"), "--mode", "segmented_experimental")
    notes = [f["detail"] for f in answer["findings"] if f["check"] == "windows"]
    assert bool(notes) is hybrid
    assert all("--disable-hybrid-kv-cache-manager" in note for note in notes)
