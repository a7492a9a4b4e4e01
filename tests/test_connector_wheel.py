"""The second wheel holds the connector's second name, and no file that the first one writes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

import semblend
from tests.wheel import CONNECTOR, ROOT, build_wheel


@pytest.fixture(scope="module")
def connector(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("connector"), source=CONNECTOR)


def _files(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_no_file_is_in_both_wheels(connector, installed_wheel):
    tops = [{name.split("/")[0] for name in _files(w)} for w in (connector, installed_wheel.wheel)]
    assert tops == [{"semblend_vllm_connector"}, {"semblend", "sembench"}]


def test_the_second_wheel_holds_the_whole_module(connector):
    module = ROOT / "src" / "semblend_vllm_connector"
    sources = {p.relative_to(ROOT / "src").as_posix() for p in module.rglob("*.py")}
    assert sources | {"semblend_vllm_connector/py.typed"} <= _files(connector)


def test_it_depends_on_this_version_of_the_first_and_its_extra_brings_the_embedders(connector):
    archive = zipfile.ZipFile(connector)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    said = Parser().parsestr(archive.read(name).decode())
    assert (said["Name"], said["Version"]) == ("semblend-vllm-connector", semblend.__version__)
    needed = said.get_all("Requires-Dist")
    # The older project on the index ends before 0.4, so that pip never takes it for the first.
    assert "semblend>=0.4.0" in needed
    assert "semblend[embedder]>=0.4.0; extra == 'semblend'" in needed


def test_both_installed_together_the_second_name_is_there(connector, installed_wheel, tmp_path):
    folder = tmp_path / "second"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", folder, connector], check=True, timeout=300)
    code = "import semblend_vllm_connector as c; from importlib.metadata import version; "
    code += "print(c.__file__, version('semblend-vllm-connector'))"
    environment = {**installed_wheel.environment(tmp_path), "PYTHONPATH": str(folder)}
    said = subprocess.run(
        [installed_wheel.python, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(str(folder))
    assert said.split()[-1] == semblend.__version__
