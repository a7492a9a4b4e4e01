"""The commands do what the README says, and bad input gets a clear error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import semblend
from semblend.cli.bench_lookup import bench_lookup
from semblend.cli.main import app
from semblend.core.plan import Plan
from semblend.core.settings import Settings

ROOT = Path(__file__).parent.parent
PROMPTS = ROOT / "examples" / "prompts"
MODEL = ROOT / "models" / "semblend-reference-27m"


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def test_explain_draws_spans_holes_and_the_verdict():
    result = run("explain", PROMPTS / "second.txt", PROMPTS / "first.txt")
    assert result.exit_code == 0
    assert "moved" in result.stdout
    assert "277 reused" in result.stdout
    assert "faster" in result.stdout


@pytest.mark.parametrize("tokenizer", ["", MODEL])
def test_explain_prints_the_plan_as_json_with_any_tokenizer(tokenizer):
    result = run(
        "explain", PROMPTS / "second.txt", PROMPTS / "first.txt", "--tokenizer", tokenizer, "--json"
    )
    plan = Plan.from_dict(json.loads(result.stdout))
    assert plan.executable
    assert plan.reused_tokens > 0.6 * plan.prompt_tokens


def test_explain_says_why_nothing_is_reused(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("nothing in common " * 30)
    result = run("explain", other, PROMPTS / "first.txt")
    assert result.exit_code == 0
    assert "not reused: no_match" in result.stdout


def test_explain_reads_standard_input():
    text = (PROMPTS / "second.txt").read_text()
    result = run("explain", "-", PROMPTS / "first.txt", "--json", input=text)
    assert Plan.from_dict(json.loads(result.stdout)).executable


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.txt", PROMPTS / "first.txt"], "absent.txt"),
        ([PROMPTS / "second.txt", PROMPTS / "first.txt", "--policy", "magic"], "known names"),
        ([PROMPTS / "second.txt", PROMPTS / "first.txt", "--tokenizer", "/nowhere"], "/nowhere"),
    ],
)
def test_explain_names_what_is_wrong(arguments, said):
    result = run("explain", *arguments)
    assert said in result.output


def test_settings_shows_every_variable_and_hides_the_secret(monkeypatch):
    monkeypatch.setenv("SEMBLEND_NAMESPACE_SECRET", "hush")
    monkeypatch.setenv("COLUMNS", "200")
    result = run("settings")
    for name in Settings.model_fields:
        hidden = name not in Settings.shown()  # one that plants faults is not for users
        assert (f"SEMBLEND_{name.upper()}" in result.stdout) is not hidden
    assert "hush" not in result.stdout + run("settings", "--json").stdout


SMALL = ("--donors", "1200", "--repeats", "5", "--vectors", "2000", "--json")


def test_bench_lookup_meets_its_coverage_targets_and_prints_one_shape(capsys):
    """At a small scale; the full figures come from the command itself."""
    result = run("bench", "lookup", *SMALL)
    report = json.loads(result.stdout.strip().splitlines()[-1])
    assert set(report) == {"benchmark", "command", "rows"}
    (progress,) = [line for line in result.stderr.splitlines() if "(100%), took" in line]
    assert progress.startswith("bench lookup: "), "one total for all of it, without a terminal"
    for row in report["rows"]:
        assert set(row) == {"case", "metric", "value", "unit", "target", "ok"}
    coverage = [row for row in report["rows"] if row["metric"] == "coverage of oracle"]
    assert len(coverage) == 22
    assert all(row["ok"] for row in coverage)
    exact = {"tokens that differ", "tokens beyond identical runs", "plans below the worth-it line"}
    assert all(row["value"] == 0 for row in report["rows"] if row["metric"] in exact)
    assert bench_lookup.__doc__


def test_the_version_is_one_and_the_same_everywhere():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"semblend {semblend.__version__}\n")
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "semblend" / "Chart.yaml").read_text())
    assert chart["appVersion"] == semblend.__version__
    values = (ROOT / "deploy" / "helm" / "values-vllm.yaml").read_text()
    assert f'tag: "{semblend.__version__}"' in values


def test_the_command_is_installed():
    result = subprocess.run(
        [Path(sys.executable).with_name("semblend"), "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert "explain" in result.stdout
