"""Pods' logs through kubectl: a stand-in on PATH records how it was called."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from sembench.errors import UsageError
from sembench.k8s import PodLog
from tests.sembench.mock_runs import load_json, sembench

LINE = "[FUZZY] Realized 320 fuzzy tokens"
HIT = "[FUZZY RADIX] Fuzzy match success: rid=r cached=320 quality_cosine=0.9"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `kubectl` that writes its arguments down and prints a log."""
    record = tmp_path / "calls.jsonl"
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"open({str(record)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "if os.environ.get('KUBECTL_FAILS'):\n"
        "    sys.exit('pods \"sglang-0\" not found')\n"
        f"print({HIT!r})\n"
        f"print({LINE!r})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    return record


def collect(tmp_path: Path, *more: object) -> int:
    return sembench(
        *("collect-k8s-engine-events", "--engine", "sglang", "--namespace", "inference"),
        *("--pod", "sglang-0", "--output-log", tmp_path / "out" / "sglang.txt"),
        *("--output-summary", tmp_path / "out" / "summary.json", *more),
    ).exit_code


def test_the_log_is_kept_and_summarised(tmp_path: Path, calls: Path) -> None:
    assert collect(tmp_path, "--since-time", "2026-06-22T18:00:00Z") == 0
    assert json.loads(calls.read_text()) == [
        *("logs", "--namespace", "inference", "sglang-0"),
        "--since-time=2026-06-22T18:00:00Z",
    ]
    assert (tmp_path / "out" / "sglang.txt").read_text() == f"{HIT}\n{LINE}\n"
    assert load_json(tmp_path / "out" / "summary.json")["materialized_tokens"] == 320


def test_without_a_time_the_tail_bounds_the_log(tmp_path: Path, calls: Path) -> None:
    assert collect(tmp_path, "--container", "engine", "--tail", 50) == 0
    assert json.loads(calls.read_text())[4:] == ["--container", "engine", "--tail=50"]


def test_a_failing_kubectl_leaves_no_half_log(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECTL_FAILS", "1")
    assert collect(tmp_path) == 2
    assert list((tmp_path / "out").iterdir()) == []


def test_no_kubectl_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect(tmp_path) == 2


def test_both_kinds_of_time_or_a_flag_as_name_are_refused() -> None:
    with pytest.raises(UsageError, match="not both"):
        PodLog(namespace="n", pod="p", since="5m", since_time="2026-06-22T18:00:00Z")
    with pytest.raises(UsageError, match="--pod"):
        PodLog(namespace="n", pod="--all-namespaces")
