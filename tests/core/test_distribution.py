"""Another project's `semblend` is refused by name; a clone of ours never is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semblend.core.distribution import ownership, require_this_distribution
from tests.other_project import THEIR_FILES, install_other_project, state_distribution

SOURCE = Path(__file__).resolve().parents[2] / "src"
OURS = (*THEIR_FILES, "semblend/core/distribution.py")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that is looked in before all others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_their_distribution_is_foreign_whatever_stands_beside_it(site):
    state_distribution(site, "0.3.25")
    assert ownership(site / "semblend").foreign == (f"semblend 0.3.25 in {site}",)
    state_distribution(site, "0.4.0", OURS)
    assert ownership(site / "semblend").foreign == (f"semblend 0.3.25 in {site}",)


def test_their_project_is_told_by_its_files_and_not_by_its_version(site):
    state_distribution(site, "99.0")
    assert ownership(site / "semblend").foreign == (f"semblend 99.0 in {site}",)


def test_our_wheel_is_ours_in_any_version(site):
    for version in ("0.4.0", "7.1"):
        state_distribution(site, version, OURS)
    assert ownership(site / "semblend").foreign == ()
    assert ownership(site / "semblend").beside == ()


def test_an_editable_clone_is_ours(site, tmp_path):
    clone = tmp_path / "a clone"
    url = json.dumps({"dir_info": {"editable": True}, "url": clone.as_uri()})
    state_distribution(site, "0.4.0", ["_editable_impl_semblend.pth"], direct_url=url)
    found = ownership(clone / "src" / "semblend")
    assert (found.foreign, found.beside) == ((), ())


def test_a_tree_on_the_path_is_never_refused_and_what_stands_beside_it_is_said(site, tmp_path):
    install_other_project(site)
    found = ownership(tmp_path / "tree" / "semblend")
    assert found.foreign == ()
    assert f"semblend 0.3.25 in {site}" in found.beside


def test_damaged_metadata_is_no_objection(site):
    folder = state_distribution(site, "0.4.0", ["other.py"], direct_url="{not json")
    (folder / "METADATA").write_bytes(b"\xff\xfe\x00")
    (folder / "RECORD").write_bytes(b'"unclosed')
    assert ownership(site / "semblend").foreign == ()


def test_what_runs_these_tests_is_this_project():
    require_this_distribution("serve")


def test_the_wheel_recognises_itself(installed_wheel, tmp_path):
    code = "from semblend.core.distribution import ownership; print(ownership())"
    said = subprocess.run(
        [installed_wheel.python, "-c", code],
        cwd=tmp_path,
        env=installed_wheel.environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "Ownership(foreign=(), beside=())"


def test_our_connectors_second_name_imports_nothing_of_theirs(tmp_path):
    install_other_project(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import semblend_vllm_connector.connector"],
        env={"PYTHONPATH": f"{tmp_path}:{SOURCE}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert f"refuses to run with semblend 0.3.25 in {tmp_path}/semblend" in said
    assert "pip install '.[vllm]'" in said
