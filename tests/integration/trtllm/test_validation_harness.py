"""The validation harness: its gates can fail, and it runs for real on the embedded engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.suite import trtllm_semantic_validation as harness
from benchmarks.suite.validation_engines import EngineUnavailableError, Served, open_engine

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "models" / "semblend-reference-27m"
GATES = ["--min-speedup", "1.05", "--min-rouge1", "0.35", "--min-token-f1", "0.10"]


class Scripted:
    """An engine that answers as told: for the gates, not for the engines."""

    name, description, policy, certified = "embedded", "scripted", "none", False

    def __init__(self, **warm):
        self.served = {"text": "the red fox", "ttft_ms": 10.0, "reused_tokens": 80, **warm}
        self.control_tokens = warm.pop("control_tokens", 0)
        self.served.pop("control_tokens", None)

    def donor(self, text, salt):
        pass

    def cold(self, text, salt, max_tokens):
        return Served(text="the red fox", ttft_ms=30.0, prompt_tokens=100, reused_tokens=0)

    def warm(self, text, salt, max_tokens):
        values = dict(self.served)
        if salt.startswith("control"):
            values["reused_tokens"] = self.control_tokens
        return Served(prompt_tokens=100, **values)

    def close(self):
        pass


def run(monkeypatch, tmp_path, engine, *more):
    output = tmp_path / "results" / "out.json"
    monkeypatch.setattr(harness, "open_engine", lambda *_, **__: engine)
    code = harness.main(["--model", "m", "--output", str(output), *GATES, *more])
    return code, json.loads(output.read_text(encoding="utf-8"))


def test_every_gate_holds_on_a_faultless_engine(monkeypatch, tmp_path):
    code, body = run(monkeypatch, tmp_path, Scripted())
    assert (code, body["passed"], body["failures"]) == (0, True, [])
    assert len(body["pairs"]) == 6
    rows = {(row["case"], row["metric"]): row for row in body["rows"]}
    assert rows["pairs", "ttft_speedup"]["value"] == pytest.approx(3.0)
    assert rows["pairs", "ttft_speedup"]["target"] == 1.05


@pytest.mark.parametrize(
    ("fault", "metric"),
    [
        ({"ttft_ms": 29.9}, "pairs ttft_speedup"),
        ({"text": "something else entirely"}, "pairs rouge1"),
        ({"text": "something else entirely"}, "pairs token_f1"),
        ({"text": ""}, "pairs rouge1"),
        ({"reused_tokens": 0}, "pairs pairs_confirmed"),
        ({"control_tokens": 16}, "negative_controls confirmed_tokens"),
    ],
)
def test_a_fault_fails_its_gate(monkeypatch, tmp_path, fault, metric):
    code, body = run(monkeypatch, tmp_path, Scripted(**fault))
    assert code == 1
    assert any(failure.startswith(metric) for failure in body["failures"]), body["failures"]


def judge_script(tmp_path, line):
    path = tmp_path / "judge.py"
    path.write_text(f"import json, sys\npair = json.load(sys.stdin)\n{line}\n", encoding="utf-8")
    return f"{sys.executable} {path}"


def test_the_judge_reads_both_answers_and_its_score_is_gated(monkeypatch, tmp_path):
    command = judge_script(tmp_path, "print(int(pair['baseline'] == pair['semblend']))")
    more = ("--judge-command", command, "--min-judge-score", "0.9")
    assert run(monkeypatch, tmp_path, Scripted(), *more)[0] == 0
    code, body = run(monkeypatch, tmp_path, Scripted(text="the red dog"), *more)
    assert code == 1
    assert any("judge_score" in failure for failure in body["failures"])


def test_a_judge_that_fails_is_an_error_and_no_pass(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(harness, "open_engine", lambda *_, **__: Scripted())
    command = judge_script(tmp_path, "sys.exit('no opinion')")
    assert harness.main(["--model", "m", "--judge-command", command]) == 2
    assert "no opinion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("a b c", "a b c", 1.0),
        ("a b", "c d", 0.0),
        ("x y", "x z", 0.5),
        ("", "", 1.0),
        ("x", "", 0),
    ],
)
def test_rouge1_is_the_f1_of_words(one, two, expected):
    assert harness.rouge1(one, two) == pytest.approx(expected)


def test_an_engine_that_is_not_here_is_named():
    with pytest.raises(EngineUnavailableError, match="--engine trtllm: not installed"):
        open_engine("trtllm", "m", policy="none")


def test_the_documented_command_runs_on_the_embedded_engine(tmp_path, capsys):
    """As written, with a model that is here; shorter documents, judge and perplexity for real."""
    output = tmp_path / "results" / "trtllm-semblend.json"
    command = judge_script(tmp_path, "print(int(pair['baseline'] == pair['semblend']))")
    code = harness.main(
        [
            *("--model", str(REFERENCE), "--output", str(output), *GATES),
            *("--engine", "embedded", "--pairs", "2", "--negative-controls", "1"),
            *("--document-tokens", "400", "--max-tokens", "6", "--json"),
            *("--ppl-model", str(REFERENCE), "--max-ppl-ratio", "1.2"),
            *("--judge-command", command, "--min-judge-score", "1"),
        ]
    )
    body = json.loads(output.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == body["rows"]
    failures = [one for one in body["failures"] if "ttft_speedup" not in one]  # a busy machine
    assert failures == []
    assert code in (0, 1)
    assert body["context"]["engine"] == "embedded"
    assert body["context"]["tensorrt_llm"].startswith("NOT measured")
    rows = {(row["case"], row["metric"]): row["value"] for row in body["rows"]}
    assert rows["pairs", "confirmed_share"] > 0.5
    assert rows["pairs", "ppl_ratio"] == pytest.approx(1.0, abs=0.2)
    assert rows["pairs", "judge_score"] == 1.0
    assert rows["negative_controls", "confirmed_tokens"] == 0
