"""Plug-ins by entry point: found, listed, used by name, and blamed by name when broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sembench.conversations import load_story
from sembench.errors import UsageError
from sembench.planners.loading import planner_class
from sembench.profiles import load_profile
from sembench.transforms import transforms_named
from tests.sembench.mock_runs import load_json, sembench

MODULE = """
from sembench.conversations.chat import ChatStory
from sembench.planners.oracle import OraclePlanner
from sembench.profiles.synthetic import Synthetic
from sembench.transforms.exact_repeat import ExactRepeat

class Twice(ExactRepeat):
    name = "twice"

class Other(ExactRepeat):
    name = "another_name"

class MyPlanner(OraclePlanner):
    pass

class Tale(ChatStory):
    pass

def documents(*, records_per_dataset, seed, **_):
    return Synthetic(profile="mine", records_per_dataset=1, seed=seed)
"""
ENTRY_POINTS = """
[sembench.transforms]
twice = sembench_test_plugin:Twice
misnamed = sembench_test_plugin:Other
broken = sembench_no_such_module:Nothing
no_transform = sembench_test_plugin:documents

[sembench.planners]
mine = sembench_test_plugin:MyPlanner

[sembench.profiles]
my-documents = sembench_test_plugin:documents
fixture = sembench_no_such_module:Nothing

[sembench.stories]
tale = sembench_test_plugin:Tale
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sembench_test_plugin.py").write_text(MODULE)
    information = tmp_path / "sembench_test_plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sembench-test-plugin\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sembench_test_plugin", raising=False)


@pytest.mark.usefixtures("installed")
def test_each_kind_is_used_by_name() -> None:
    assert transforms_named(["twice"])[0].name == "twice"
    assert planner_class("mine").__name__ == "MyPlanner"
    assert load_profile("my-documents").profile == "mine"
    assert type(load_story("tale", seed=0, index=0)).__name__ == "Tale"


@pytest.mark.usefixtures("installed")
def test_a_manifest_is_built_with_a_plug_ins_documents_and_transform(tmp_path: Path) -> None:
    built = sembench(
        *("build", "--profile", "my-documents", "--transforms", "twice"),
        *("--output", tmp_path / "m.jsonl"),
    )
    assert built.exit_code == 0, built.output
    assert '"transform": "twice"' in (tmp_path / "m.jsonl").read_text()
    audited = sembench("audit-manifest", "--manifest", tmp_path / "m.jsonl")
    assert audited.exit_code == 0, audited.output


@pytest.mark.usefixtures("installed")
def test_plug_ins_are_listed_beside_what_is_built_in() -> None:
    assert "plug-in: sembench_test_plugin:Twice" in sembench("list", "transforms").output
    listed = sembench("list", "profiles").output
    for name in ("my-documents", "tale", "agent", "chat", "fixture"):
        assert name in listed
    assert "sembench_no_such_module" not in listed, "a built-in name cannot be taken"
    assert "mine" in sembench("list", "planners").output
    assert "--min-quality-pass-rate" in sembench("list", "gates").output


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "'broken' of sembench-test-plugin .* cannot be loaded"),
        ("misnamed", "calls itself 'another_name'"),
        ("no_transform", "names no Transform class"),
        ("nobody", "is not one of"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named(name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        transforms_named([name])
    assert transforms_named(["exact_repeat"]), "it costs nobody else anything"


@pytest.mark.usefixtures("installed")
def test_a_built_in_name_is_never_a_plug_ins() -> None:
    assert load_profile("fixture").profile == "fixture"


def test_turns_are_played_offline_and_a_manifest_of_them_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "turns.json"
    done = sembench(
        *("run-turns-offline", "--profile", "chat", "--conversations", 1, "--output", output)
    )
    assert done.exit_code == 0, done.output
    aggregate = load_json(output)["aggregate"]
    computed = [aggregate[f"{who}_computes"] for who in ("oracle", "planner", "prefix_cache")]
    assert computed == sorted(computed)
    assert len(load_json(output)["requests"]) == aggregate["turns"] == 10
    for command in ("report", "assert-result-gates"):
        told = sembench(command, "--result", output)
        assert told.exit_code == 2
        assert "rows are turns" in str(told.exception)
    refused = sembench("build", "--profile", "agent", "--output", tmp_path / "m.jsonl")
    assert refused.exit_code == 2
