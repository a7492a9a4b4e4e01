"""`make` uses whatever Python of 3.11 to 3.13 is there, and says so where there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKS = """#!/bin/bash
case "$2" in *ensurepip*) echo {version} ;; *) echo /somewhere/{name} ;; esac
"""
SHIM = "#!/bin/bash\necho 'not installed; it exists in these versions: …' >&2\nexit 127\n"


@pytest.fixture
def machine(tmp_path):
    """A PATH with a shell and no Python; call it to add one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "ls"):
        (folder / tool).symlink_to(str(shutil.which(tool)))

    def add(name, text):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)

    return add


def find(tmp_path, *arguments):
    return subprocess.run(
        [shutil.which("bash"), ROOT / "scripts" / "find_python.sh", *arguments],
        env={"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )


def works(name, version):
    return WORKS.format(name=name, version=version)


def test_a_shim_that_does_not_run_is_passed_over(machine, tmp_path):
    machine("python3.11", SHIM)
    machine("python3.12", works("python3.12", "3.12"))
    machine("python3.13", works("python3.13", "3.13"))
    assert find(tmp_path).stdout == "/somewhere/python3.12\n"
    assert find(tmp_path, "all").stdout == (
        "3.12 /somewhere/python3.12\n3.13 /somewhere/python3.13\n"
    )


def test_a_plain_python3_will_do_if_its_version_does(machine, tmp_path):
    machine("python3", works("python3", "3.13"))
    assert find(tmp_path).stdout == "/somewhere/python3\n"
    machine("python3", works("python3", "3.14"))
    assert find(tmp_path).returncode == 1


def test_pythons_of_pyenv_are_found_whatever_is_on_the_path(machine, tmp_path):
    folder = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(works("pyenv", "3.12"), encoding="utf-8")
    (folder / "python").chmod(0o755)
    assert find(tmp_path).stdout == "/somewhere/pyenv\n"


def test_none_is_said_with_what_would_help(machine, tmp_path):
    found = find(tmp_path)
    assert found.returncode == 1
    assert "make PYTHON=" in found.stderr
