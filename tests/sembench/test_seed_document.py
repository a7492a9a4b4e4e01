"""Every command of the public SemBench document works as it is written there.

The document is read from beside the repository where it is kept; its commands are run
one after another in an empty folder. Only what cannot be had here is replaced: hosts by
a mock engine, the hub's data by local files of the same format, the hub's tokenizer by
the bundled one, kubectl by a stand-in.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from sembench.mock_engine import LogFormat
from sembench.profiles import load_profile
from tests.sembench.mock_runs import mock_engine, sembench

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"
PROGRAM = "python -m sembench "


def _document() -> Path | None:
    return next(iter(sorted(SEEDS.glob("004*.txt"))), None)


def commands() -> list[str]:
    document = _document()
    if document is None:
        return []
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith(PROGRAM)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _write_data(tmp_path / "longbench")
    _write_kubectl(tmp_path / "bin", tmp_path / "results" / "sglang-backend.log")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def _write_data(folder: Path) -> None:
    """Files in LongBench's format, one a dataset the document names, of generated text."""
    folder.mkdir()
    records = list(
        load_profile(
            "synthetic-v1",
            datasets=(),
            data_dir=None,
            hf_revision=None,
            records_per_dataset=3,
            seed=5,
        ).records()
    )
    names = "qasper multifieldqa_en hotpotqa 2wikimqa musique gov_report qmsum multi_news lcc"
    for number, name in enumerate([*names.split(), "repobench-p"]):
        record = records[number % len(records)]
        line = {
            "_id": f"{name}-0",
            "dataset": name,
            "input": record.input,
            "context": record.context,
            "answers": list(record.answers),
            "length": len(record.context.split()),
            "language": "en",
        }
        (folder / f"{name}.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")


def _write_kubectl(folder: Path, log: Path) -> None:
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdout.write(open({str(log)!r}).read())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.skipif(not commands(), reason="the public document is not beside this repository")
def test_every_command_works_as_written(folder: Path) -> None:
    results = folder / "results"
    results.mkdir()
    run: list[str] = []
    engine = mock_engine(
        model="Qwen/Qwen2.5-7B-Instruct",
        log_path=results / "sglang-backend.log",
        log_format=LogFormat.SGLANG,
        audit_path=results / "trtllm-audit.jsonl",
    )
    with engine as url:
        for command in commands():
            words = shlex.split(command[len(PROGRAM) :])
            words = [url if word.startswith("http://localhost:") else word for word in words]
            if "longbench-v1" in words:
                words += ["--data-dir", str(folder / "longbench")]
            if "--tokenizer" in words:
                at = words.index("--tokenizer") + 1
                words[at] = str(ROOT / "models" / "semblend-reference-27m")
            if "--input" in words:
                _provide(Path(words[words.index("--input") + 1]))
            done = sembench(*words)
            assert done.exit_code == 0, f"{command}\n{done.output}"
            run.append(words[0])
    assert len(run) == len(commands()) >= 11
    assert run.count("summarize-engine-events") == 3
    assert (results / "sglang-engine-events.json").exists()


@pytest.mark.skipif(not commands(), reason="the public document is not beside this repository")
def test_every_extra_the_document_installs_exists() -> None:
    document = _document()
    assert document is not None
    text = document.read_text(encoding="utf-8")
    named = {name for group in re.findall(r"'\.\[([\w,]+)\]'", text) for name in group.split(",")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"dev", "live", "longbench", "tokenizer"} <= named
    assert named <= set(project["optional-dependencies"])


def _provide(path: Path) -> None:
    """A log of the name the document gives, where the mock engine has not written it."""
    if path.exists():
        return
    path.write_text(
        "INFO SemBlend semantic lookup hit request_id=a donor_id=b similarity=0.9\n"
        "INFO SemBlend materialized request_id=a donor_id=b tokens=640\n"
    )
