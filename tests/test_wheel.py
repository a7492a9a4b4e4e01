"""Who has only the wheel gets what a clone gives: certificates found, and K/V reused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
import zipfile
from urllib.error import URLError

import pytest

import semblend
from semblend.planning.certificates import SHIPPED
from tests.wheel import ROOT, build_wheel

MODEL = ROOT / "models" / "semblend-reference-27m"
DOCUMENT = " ".join(
    f"The keeper of house {page} counted {page * 37 % 101} lamps before the evening came."
    for page in range(60)
)


def test_the_wheel_carries_every_certificate_and_no_other_folder(installed_wheel):
    names = zipfile.ZipFile(installed_wheel.wheel).namelist()
    inside = {name for name in names if name.startswith("semblend/certificates/")}
    assert inside == {f"semblend/certificates/{path.name}" for path in SHIPPED.iterdir()}
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"semblend", "sembench"}


def test_the_repository_holds_one_copy_of_the_certificates():
    listed = subprocess.run(
        ["git", "ls-files", "*.depth.safetensors"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    folders = {path.rpartition("/")[0] for path in listed.stdout.split()}
    assert folders == {SHIPPED.relative_to(ROOT).as_posix()}


def test_the_installed_package_is_not_the_source_tree(installed_wheel, tmp_path):
    code = "import semblend, sys; print(semblend.__file__); print(sys.path)"
    assert f"semblend-{semblend.__version__}-" in installed_wheel.wheel.name
    said = subprocess.run(
        [installed_wheel.python, "-c", code],
        cwd=tmp_path,
        env=installed_wheel.environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(str(installed_wheel.folder))
    assert str(ROOT / "src") not in said


def test_a_server_from_the_wheel_reuses_under_the_shipped_certificate(installed_wheel, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as words:
        server = subprocess.Popen(
            [installed_wheel.semblend, "serve", MODEL, "--port", str(port), "--device", "cpu"],
            cwd=tmp_path,
            env=installed_wheel.environment(tmp_path),
            stdout=words,
            stderr=words,
        )
    try:
        _await(f"http://127.0.0.1:{port}/health/ready", server, log)
        first = _ask(port, DOCUMENT + " How many lamps has house 37?")
        assert first["outcome"] == "cold"
        deadline, attempt = time.monotonic() + 120, 0
        while True:  # a donor is stored a moment after its answer
            attempt += 1
            second = _ask(port, f"This is reading number {attempt}. {DOCUMENT} And house 41?")
            if second["outcome"] == "materialised" or time.monotonic() > deadline:
                break
        assert second["outcome"] == "materialised", log.read_text()[-3000:]
        assert second["certified"] is True
        assert second["reused_tokens"] > 0.6 * second["prompt_tokens"]
    finally:
        server.terminate()
        server.wait(timeout=60)


def test_the_hook_of_the_chart_finds_the_certificate_in_the_wheel(installed_wheel, tmp_path):
    said = subprocess.run(
        [installed_wheel.semblend, "certificates", "verify", MODEL, "--dtype", "bfloat16"],
        cwd=tmp_path,
        env=installed_wheel.environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(str(installed_wheel.folder))
    assert said.stdout.endswith("bfloat16.json: holds\n")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.vllm"])
def test_an_image_builds_this_very_wheel_from_what_it_copies(name, installed_wheel, tmp_path):
    text = (ROOT / "deploy" / "docker" / name).read_text(encoding="utf-8")
    context = tmp_path / "context"
    context.mkdir()
    stages = text.split("\nFROM ")
    assert len(stages) == 3, "one builds the wheel, one installs it"
    for line in re.findall(r"^COPY (?!--from)(.+)$", stages[1], re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy2
            copy(ROOT / source, context / source)
    assert re.search(r"pip wheel .*--no-deps --wheel-dir /wheel \.$", stages[1], re.MULTILINE)
    assert "COPY --from=build /wheel " in stages[2]
    assert re.search(r"pip install [^&]*wheel/semblend-\*\.whl", stages[2])
    for line in re.findall(r"^COPY (?!--from)(.+)$", stages[2], re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()[:-1])
    built = build_wheel(tmp_path / "wheel", source=context)
    mine, theirs = (
        {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith(".pyc")}
        for wheel in (installed_wheel.wheel, built)
    )
    assert theirs == mine


def _await(url, server, log):
    deadline = time.monotonic() + 240
    while True:
        assert server.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)


def _ask(port, prompt):
    body = {"model": MODEL.name, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["semblend"]
