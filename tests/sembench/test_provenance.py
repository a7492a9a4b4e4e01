"""Provenance: enough to repeat a run or to refuse to compare it."""

import subprocess
import sys

from sembench.ids import file_sha256
from sembench.provenance import command_line, environment, git_state, run_config, run_metadata


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, "-C", folder, *arguments], check=True, capture_output=True)


def test_a_run_names_its_manifest_and_versions(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("x", encoding="utf-8")
    run = run_metadata(engine="offline", manifest=path, backend_id="b")
    assert run.manifest_sha256 == file_sha256(path)
    assert run.manifest_path == str(path)
    assert run.backend_id == "b"
    assert run.sembench_version
    assert run.timestamp_utc.endswith("Z")
    assert run_metadata(engine="offline", manifest=None).run_id != run.run_id
    assert run_metadata(engine="offline", manifest=None, run_id="mine").run_id == "mine"


def test_the_state_of_the_source_tree_is_told(tmp_path):
    assert git_state(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    sha, dirty = git_state(tmp_path)
    assert len(sha) == 40
    assert dirty is False
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert git_state(tmp_path) == (sha, True)


def test_the_command_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/sembench/__main__.py", "build", "--output", "a b"])
    assert command_line() == "python -m sembench build --output 'a b'"
    assert run_config({"seed": 1})["command"] == command_line()


def test_the_environment_names_what_moves_figures():
    found = environment()
    assert {"python", "platform", "host", "packages"} <= set(found)
    assert "numpy" in found["packages"]
