"""What cannot be used is named in one line with exit code 2, by every command."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sembench.cli.main import COMMANDS
from sembench.manifests.files import read_manifest
from tests.sembench.mock_runs import mock_engine, sembench, sembench_process, short_manifest

DEAD = "http://127.0.0.1:9"
FILES = ("nowhere", "broken.json", "list.json", "bytes.json", "folder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad")
    (path / "broken.json").write_text("{")
    (path / "list.json").write_text("[]")
    (path / "bytes.json").write_bytes(b"\xa4\x8c\xff")
    (path / "empty.jsonl").write_text("")
    (path / "folder").mkdir()
    short_manifest(path, records=1)
    done = sembench(
        "run-offline", "--manifest", path / "short.jsonl", "--output", path / "good.json"
    )
    assert done.exit_code == 0
    return path


def refused(*arguments: object) -> str:
    """The message of a command that is refused."""
    done = sembench(*arguments)
    assert done.exit_code == 2, f"{arguments}: {done.output} {done.exception}"
    return str(done.exception) if done.exception is not None else done.output


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "command",
    [
        "report --result {bad}",
        "assert-result-gates --result {bad}",
        "assert-result-gates --result {good} --engine-summary {bad}",
        "assert-result-gates --result {good} --noise-floor-calibration {bad}",
        "compare --result {bad} {good}",
        "compare --result {good} {bad}",
        "merge-results --cold {bad} --warm {good} --output {out}",
        "merge-results --cold {good} --warm {bad} --output {out}",
        "engine-window --before {bad} --after {bad}",
        "audit-manifest --manifest {bad}",
        "run-offline --manifest {bad} --output {out}",
        "freeze --spec {bad} --manifests-dir {out}",
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    folder: Path, command: str, name: str
) -> None:
    places = {"bad": folder / name, "good": folder / "good.json", "out": folder / "out.json"}
    message = refused(*(word.format(**places) for word in command.split()))
    assert name in message
    assert not (folder / "out.json").exists()


@pytest.mark.parametrize("url", ["notaurl", "http://", "ftp://host/x", ":80"])
@pytest.mark.parametrize(
    "command",
    [
        "run-live-gateway {run} --gateway-url {url}",
        "run-live-gateway {run} --gateway-url {dead} --donor-url {url}",
        "run-live-gateway {run} --gateway-url {dead} --worker-url {url}",
        "run-live-gateway {run} --gateway-url {dead} --reset-url {url}",
        "run-live-gateway {run} --gateway-url {dead} --metrics-url {url}",
        "run-live-sglang {run} --base-url {url}",
        "run-load {run} --base-url {url}",
        "calibrate-noise-floor {run} --base-url {url}",
        "verify-endpoint --base-url {url}",
        "engine-snapshot --metrics-url {url} --output {out}",
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(
    folder: Path, command: str, url: str
) -> None:
    out = folder / "out.json"
    run = f"--manifest {folder / 'short.jsonl'} --output {out} --model m"
    message = refused(*command.format(run=run, url=url, dead=DEAD, out=out).split())
    assert "expected http://host:port" in message
    assert not out.exists()


@pytest.mark.parametrize(
    "command",
    ["run-live-gateway --gateway-url", "run-live-sglang --base-url", "run-load --base-url"],
)
@pytest.mark.parametrize("skip", ["", "--skip-verify"])
def test_an_endpoint_that_is_not_there_is_no_measurement(
    folder: Path, tmp_path: Path, command: str, skip: str
) -> None:
    output = tmp_path / "out.json"
    run = f"--manifest {folder / 'short.jsonl'} --output {output} --model m --max-items 2"
    message = refused(*f"{command} {DEAD} {run} {skip}".split())
    assert DEAD in message or "requests was answered" in message or "donor" in message
    assert not output.exists(), "a result of failures alone would look like one"


def test_a_calibration_without_answers_is_none(folder: Path, tmp_path: Path) -> None:
    run = f"--manifest {folder / 'short.jsonl'} --output {tmp_path / 'c.json'} --model m"
    message = refused(*f"calibrate-noise-floor {run} --base-url {DEAD} --max-items 1".split())
    assert "answered" in message
    assert not (tmp_path / "c.json").exists()


def test_an_audit_the_engine_never_wrote_is_said_and_the_result_kept(
    folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    run = f"--manifest {folder / 'short.jsonl'} --output {output} --model mock-model --max-items 1"
    with mock_engine() as url:
        message = refused(
            *f"run-live-gateway {run} --gateway-url {url}".split(),
            *("--connector-audit", tmp_path / "nowhere.jsonl"),
        )
    assert "--connector-audit" in message
    assert json.loads(output.read_text())["requests"]


def test_an_empty_manifest_is_nothing_to_audit_or_to_measure(folder: Path) -> None:
    empty, out = folder / "empty.jsonl", folder / "out.json"
    assert "has no items" in refused("audit-manifest", "--manifest", empty)
    assert "has no items" in refused("run-offline", "--manifest", empty, "--output", out)
    assert not out.exists()


def test_another_semblend_must_be_there(folder: Path) -> None:
    message = refused(
        *("run-offline", "--manifest", folder / "short.jsonl", "--output", folder / "out.json"),
        *("--semblend-path", folder / "nowhere"),
    )
    assert "--semblend-path" in message


@pytest.mark.parametrize("output", ["folder", "short.jsonl/below.json"])
@pytest.mark.parametrize(
    "command",
    [
        "build --profile fixture --output {out}",
        "run-offline --manifest {manifest} --output {out}",
        "merge-results --cold {good} --warm {good} --output {out}",
        "report --result {good} --output {out}",
        "audit-manifest --manifest {manifest} --output {out}",
    ],
)
def test_what_cannot_be_written_is_one_line_as_well(
    folder: Path, command: str, output: str
) -> None:
    places = {
        "out": folder / output,
        "manifest": folder / "short.jsonl",
        "good": folder / "good.json",
    }
    done = sembench_process(*(word.format(**places) for word in command.split()))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(list(read_manifest(folder / "short.jsonl"))) > 0, "what was there is still there"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = refused("mock-engine", "--port", taken.getsockname()[1])
    assert "--port" in message


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name, _ in group])
def test_a_flag_nobody_knows_is_refused_by_every_command(name: str) -> None:
    assert sembench(name, "--no-such-flag", "1").exit_code == 2
