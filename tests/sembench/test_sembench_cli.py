"""The command line, as a user runs it: in a process of its own, with its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sembench.cli.main import COMMANDS
from tests.sembench.test_profiles import line

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sembench.md").read_text(encoding="utf-8")


def sembench(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "sembench", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the fixture built as the document of SemBench says."""
    place = tmp_path_factory.mktemp("sembench")
    done = sembench(place, "build", "--profile", "fixture", "--output", "manifests/fixture.jsonl")
    assert done.returncode == 0, done.stderr
    assert "168 items from 12 records" in done.stdout
    return place


def test_the_smoke_test_of_the_document_works_as_written(folder):
    done = sembench(
        folder, "run-offline", "--manifest", "manifests/fixture.jsonl",
        "--output", "results/fixture-offline.json", "--block-size", "16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "results" / "fixture-offline.json").read_text())
    assert result["aggregate"]["requests"] == 168
    assert result["aggregate"]["semantic_eligible_lift"] > 0.5
    assert result["aggregate"]["negative_control_semantic_eligible_rate"] == 0.0
    assert result["run"]["engine"] == "offline"
    assert len(result["run"]["manifest_sha256"]) == 64
    assert result["config"]["command"].startswith("python -m sembench run-offline --manifest")
    assert result["config"]["planner_described"]["name"] == "semblend"
    assert result["config"]["tokenizer"] == "stable-regex-sha256"


def test_the_replay_of_the_document_works_as_written_on_local_data(tmp_path):
    names = ["qasper", "multifieldqa_en", "hotpotqa", "lcc", "repobench-p"]
    document = "\n\n".join(
        " ".join(f"Sentence {n} of part {part} says {n * part} things." for n in range(30))
        for part in range(1, 7)
    )
    for name in names:
        rows = (line(_id=f"{n}", dataset=name, context=f"{name}{n}. {document}") for n in range(3))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    done = sembench(
        tmp_path, "build", "--profile", "longbench-v1", "--data-dir", ".",
        "--datasets", *names, "--max-items-per-dataset", "2",
        "--transforms", "instruction_variant", "same_evidence_new_task", "rag_reorder",
        "multi_donor_composite", "fuzzy_edit", "leading_evidence_new_task",
        "--max-segments", "4", "--min-segment-chars", "400",
        "--output", "manifests/longbench-v1-enterprise-replay.jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "60 items from 10 records" in done.stdout
    done = sembench(
        tmp_path, "run-offline",
        "--manifest", "manifests/longbench-v1-enterprise-replay.jsonl",
        "--output", "results/longbench-v1-offline.json", "--block-size", "16",
        "--tokenizer", ROOT / "models" / "semblend-reference-27m", "--max-items", "5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results" / "longbench-v1-offline.json").read_text())
    assert result["aggregate"]["requests"] == 5


def test_the_same_command_gives_the_same_manifest(folder):
    done = sembench(folder, "build", "--profile", "fixture", "--output", "again.jsonl")
    assert done.returncode == 0
    assert (folder / "again.jsonl").read_bytes() == (
        folder / "manifests" / "fixture.jsonl"
    ).read_bytes()


def test_frozen_manifests_verify_until_they_are_touched(tmp_path):
    (tmp_path / "small.json").write_text(
        json.dumps({"profile": "fixture", "transforms": ["exact_repeat"]}), encoding="utf-8"
    )
    spec = ("--spec", "small.json", "--manifests-dir", "frozen")
    assert sembench(tmp_path, "verify-frozen", *spec).returncode == 1
    assert sembench(tmp_path, "freeze", *spec).returncode == 0
    assert sembench(tmp_path, "verify-frozen", *spec).returncode == 0
    with (tmp_path / "frozen" / "small.jsonl").open("a") as manifest:
        manifest.write("\n")
    done = sembench(tmp_path, "verify-frozen", *spec)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "sha256" in done.stderr


def test_audits_pass_and_fail_by_exit_code(folder, tmp_path):
    done = sembench(
        folder, "audit-manifest", "--manifest", "manifests/fixture.jsonl", "--output", "audit.json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "audit.json").read_text())["violation_count"] == 0
    first = (folder / "manifests" / "fixture.jsonl").read_text(encoding="utf-8").splitlines()[0]
    item = json.loads(first)
    item["recipient_prompt"] += " and more"
    (tmp_path / "broken.jsonl").write_text(json.dumps(item) + "\n", encoding="utf-8")
    done = sembench(tmp_path, "audit-manifest", "--manifest", "broken.jsonl")
    assert done.returncode == 1
    assert json.loads(done.stdout)["violation_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("build", "--output", "x.jsonl"), "--profile or --frozen"),
        (
            ("build", "--frozen", "fixture", "--datasets", "a", "b", "--output", "x.jsonl"),
            "--datasets: not allowed with --frozen",
        ),
        (("build", "--profile", "longbench-v7", "--output", "x.jsonl"), "longbench-v7"),
        (
            ("build", "--profile", "fixture", "--transforms", "rag_reorder", "nonsense",
             "--output", "x.jsonl"),
            "'nonsense' is not one of",
        ),
        (
            ("build", "--profile", "longbench-v1", "--data-dir", "nowhere", "--output", "x.jsonl"),
            "nowhere is not a file or a folder",
        ),
        (("run-offline", "--manifest", "none.jsonl", "--output", "x.json"), "none.jsonl"),
        (
            ("run-offline", "--manifest", "manifests/fixture.jsonl", "--output", "x.json",
             "--planner", "best"),
            "--planner: 'best'",
        ),
        (
            ("run-offline", "--manifest", "manifests/fixture.jsonl", "--output", "x.json",
             "--planner-option", "novalue"),
            "--planner-option: expected key=value",
        ),
        (("run-offline", "--output", "x.json"), "--manifest"),
        (("verify-frozen", "--spec", "nonsense", "--manifests-dir", "."), "--spec: 'nonsense'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_and_exits_with_2(folder, arguments, named):
    done = sembench(folder, *arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "x.jsonl").exists()
    assert not (folder / "x.json").exists()


def test_an_empty_manifest_is_no_measurement(tmp_path):
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    done = sembench(tmp_path, "run-offline", "--manifest", "empty.jsonl", "--output", "x.json")
    assert done.returncode == 2
    assert "has no items" in done.stderr


def test_a_planner_of_ones_own_is_measured(folder):
    (folder / "mine.py").write_text(
        "from sembench.planners.oracle import OraclePlanner\n"
        "class Mine(OraclePlanner):\n"
        "    def describe(self):\n"
        "        return {'name': 'mine'}\n",
        encoding="utf-8",
    )
    done = sembench(
        folder, "run-offline", "--manifest", "manifests/fixture.jsonl", "--output", "mine.json",
        "--planner", "mine:Mine", "--max-items", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "mine.json").read_text())
    assert result["config"]["planner_described"] == {"name": "mine"}


def test_sembench_runs_without_torch_and_without_semblend(folder):
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'semblend', 'datasets', 'tokenizers'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['sembench', 'run-offline', '--manifest', 'manifests/fixture.jsonl',\n"
        "            '--output', 'light.json', '--planner', 'oracle', '--max-items', '2']\n"
        "from sembench.cli.main import run\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["build", "freeze", "verify-frozen", "audit-manifest", "list",
                                  "run-offline", "run-turns-offline"])  # fmt: skip
def test_commands_are_documented(name):
    assert name in {known for group in COMMANDS.values() for known, _ in group}
    assert f"python -m sembench {name}" in PAGE
