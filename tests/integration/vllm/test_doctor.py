"""`semblend doctor vllm` says what a start would do, before it is made."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from semblend.cli.doctor import doctor
from tests.integration.models import REFERENCE


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
