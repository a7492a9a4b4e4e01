"""Runs the arms one after another, each in its own process, and continues where a run stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence.arms import Arm, why_not
from benchmarks.evidence.cells import ONE_BY_ONE, Cell, CellName, Task, passes_of
from benchmarks.evidence.figures import passes
from benchmarks.evidence.measuring import OUT_OF_TIME, text_of
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.sweep import sweep

ROOT = Path(__file__).resolve().parents[2]
REASONS = "not_measured.json"
_LOG_END = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to measure, with which Python, and until when."""

    folder: Path
    settings: Settings
    arms: Sequence[Arm]
    workloads: Sequence[str]
    python: str
    """The interpreter of the environment with vLLM."""
    path: Sequence[str] = ()
    """Folders to import from besides, such as one that holds LMCache."""
    until: float = float("inf")


class _MissingError(Exception):
    """A cell that a sweep needs was not measured."""


def is_done(run: Run, arm: Arm, task: Task) -> bool:
    """Whether every cell of a task was measured."""

    def read(rate: float) -> Cell:
        name = CellName(workload=task.workload, arm=arm.name, seed=task.seed, rate=rate)
        if not name.path(run.folder).exists():
            raise _MissingError
        return Cell.read(name.path(run.folder))

    try:
        if task.series:
            read(ONE_BY_ONE)
        else:
            limit = run.settings.limit_ms
            sweep(run.settings.rule, lambda rate: passes(read(rate), limit_ms=limit))
    except _MissingError:
        return False
    return True


def measure(run: Run) -> bool:
    """Measure what is missing; whether everything that can be measured was."""
    reasons: dict[str, str] = {}
    complete = True
    series = run.settings.over_time > 0
    for tasks in passes_of(run.workloads, run.settings.seeds, series=series):
        for arm in run.arms:
            if reason := why_not(arm, run.settings.machine):
                reasons[arm.name] = reason
            wanted = [task for task in tasks if not is_done(run, arm, task)]
            if not wanted or arm.name in reasons:
                continue
            if time.time() >= run.until:
                complete = False
                continue
            code, said = _in_process(run, arm, wanted)
            if code == OUT_OF_TIME:
                complete = False
            elif code:
                reasons[arm.name] = said
    (run.folder / REASONS).write_text(json.dumps(reasons, indent=2) + "\n", encoding="utf-8")
    return complete


def reasons_of(folder: Path) -> dict[str, str]:
    """Why arms were not measured."""
    try:
        found: dict[str, str] = json.loads((folder / REASONS).read_text(encoding="utf-8"))
    except OSError:
        return {}
    return found


def _in_process(run: Run, arm: Arm, tasks: Sequence[Task]) -> tuple[int, str]:
    """Start an arm; its exit code, and the last words of one that failed."""
    log = run.folder / "logs" / f"{arm.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [run.python, "-m", "benchmarks.evidence.measuring", "--output", str(run.folder)]
    command += ["--arm", arm.name, "--until", str(run.until)]
    for task in tasks:
        command += ["--task", text_of(task)]
    print(f"{arm.name}: {' '.join(text_of(task) for task in tasks)}", file=sys.stderr, flush=True)
    with log.open("a", encoding="utf-8") as output:
        code = subprocess.run(
            command, cwd=ROOT, env=_environment(run.path), stdout=output, stderr=output, check=False
        ).returncode
    return code, _last_words(log) if code not in (0, OUT_OF_TIME) else ""


def _environment(path: Sequence[str]) -> Mapping[str, str]:
    parts = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""), *path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in parts if part)}


def _last_words(log: Path) -> str:
    """The line of a log that says what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line]
    said = (errors or lines or ["ended without a word"])[-1].strip()
    return f"did not run: {said[-_LOG_END:]}"
