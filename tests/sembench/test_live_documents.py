"""The documents of the live part say what the code does, and their commands work as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sembench.cli.main import COMMANDS
from sembench.gates import GATES
from sembench.mock_engine import Cheat, LogFormat, MockFault
from tests.sembench.mock_runs import load_json, mock_engine, sembench, short_manifest
from tests.sembench.test_cheats import CAUGHT_BY

DOCS = Path(__file__).parents[2] / "docs"
LIVE = (DOCS / "sembench-live.md").read_text(encoding="utf-8")
MOCK = (DOCS / "mock-engine.md").read_text(encoding="utf-8")
OFFLINE = {
    *("build", "freeze", "verify-frozen", "audit-manifest", "list", "run-offline"),
    *("run-turns-offline", "mock-engine"),
}


def test_every_gate_is_documented_by_its_flag() -> None:
    for gate in GATES:
        flag = f"--{gate.name.replace('_', '-')}"
        assert flag in LIVE or gate.name in LIVE, gate.name


@pytest.mark.parametrize(
    "name", [name for group in COMMANDS.values() for name, _ in group if name not in OFFLINE]
)
def test_every_live_command_is_documented(name: str) -> None:
    assert f"`{name}" in LIVE


def test_every_cheat_is_documented_with_the_gates_that_catch_it() -> None:
    lines = {match[1]: match[0] for match in re.finditer(r"^\| `([a-z][a-z-]+)` \|.*$", MOCK, re.M)}
    assert set(lines) == {cheat.value for cheat in Cheat if cheat is not Cheat.NONE}
    for cheat, gates in CAUGHT_BY.items():
        for gate in gates:
            assert f"`{gate}`" in lines[cheat.value]


def test_every_fault_and_log_format_is_documented() -> None:
    for fault in MockFault:
        assert fault is MockFault.NONE or fault.value in MOCK
    assert all(
        log_format.value in MOCK.lower().replace("tensorrt-llm", "trtllm")
        for log_format in LogFormat
    )


def test_the_live_pages_walk_through_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = re.findall(r"```bash\n(.*?)```", LIVE, re.S)[1].replace("\\\n", " ")
    with mock_engine(log_path=tmp_path / "engine.txt") as url:
        for line in script.strip().splitlines():
            words = shlex.split(line.replace("http://localhost:8000", url))
            assert words[0] == "sembench"
            done = sembench(*words[1:])
            assert done.exit_code == 0, f"{line}\n{done.output}"
    assert (tmp_path / "results" / "live.html").stat().st_size > 10_000


SGLANG = """
run-live-sglang --manifest {manifest} --output results/longbench-v1-sglang.json
  --base-url {url} --model mock-model --max-items 20
"""
GATEWAY = """
run-live-gateway --manifest {manifest} --output results/longbench-v1-gateway.json
  --gateway-url {url} --donor-url {url} --model mock-model --max-items 20
"""
SUMMARY = """
summarize-engine-events --engine sglang --input results/sglang-backend.txt
  --output results/sglang-engine-events.json
"""
ACCEPTANCE = """
assert-result-gates --result results/longbench-v1-gateway.json
  --engine-summary results/sglang-engine-events.json
  --min-quality-pass-rate 0.80 --min-backend-confirmed-block-rate 0.05
  --min-materialization-events 1 --min-materialized-tokens 512
  --max-negative-control-confirmed-rate 0.0 --require-materialized-reuse
  --require-no-engine-errors
"""


def test_the_public_sequence_of_live_commands_works_flag_for_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = short_manifest(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    log = tmp_path / "results" / "sglang-backend.txt"
    with mock_engine(log_path=log, log_format=LogFormat.SGLANG) as url:
        for command in (SGLANG, GATEWAY, SUMMARY, ACCEPTANCE):
            done = sembench(*shlex.split(command.format(manifest=manifest, url=url)))
            assert done.exit_code == 0, done.output
    data = load_json(tmp_path / "results" / "longbench-v1-gateway.json")
    assert data["aggregate"]["negative_control_requests"] == 2
