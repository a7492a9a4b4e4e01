"""Measured cells on disk: one file for each arm, workload, rate and seed.

A cell is written once it is complete, under a temporary name that is then renamed. A run that is
stopped therefore loses at most the cell in progress, and continues with the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sembench.load_results import LoadRow

ONE_BY_ONE = 0.0
"""The rate of a closed loop: the next request is sent when the last one is answered."""
HEADLINE = ("rag", "novel")
"""Workloads that every arm measures first: where reuse should gain most, and where it can only
cost."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CellName:
    """Which cell. `rate` is in requests per second."""

    workload: str
    arm: str
    seed: int
    rate: float

    def path(self, folder: Path) -> Path:
        """Where its file lies in the folder of a run."""
        return folder / "cells" / self.workload / self.arm / f"seed-{self.seed}-{self.rate:g}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answered request."""

    row: LoadRow
    text: str
    expected: tuple[str, ...]
    exact_tokens: int
    reused_tokens: int
    """K/V taken from a donor and confirmed by the engine."""
    continued_tokens: int
    recomputed_tokens: int
    outcome: str = ""
    """What became of reuse, and why not; empty without SemBlend."""

    @property
    def prompt_tokens(self) -> int:
        return self.row.prompt_tokens or 0

    @property
    def right(self) -> bool | None:
        """Whether the answer states what it should; None if nothing can be checked."""
        return any(value in self.text for value in self.expected) if self.expected else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one cell measured."""

    name: CellName
    requests: tuple[Request, ...]
    """In the order they were due."""
    busy_seconds: float
    """Time the engine spent in steps."""
    cpu_seconds: float
    """Processor time of the engine's process."""
    memory_bytes: int
    """Resident memory of the engine's process after the last request."""
    machine: Mapping[str, Any]
    """Hardware, versions, and the machine's load before and after."""
    decode_seconds: float = 0.0
    """Of the engine's time, that in steps without any prompt token."""

    def write(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        path = self.name.path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = asdict(self) | {
            "requests": [
                {**asdict(request), "row": request.row.to_dict()} for request in self.requests
            ]
        }
        temporary = path.with_suffix(".partial")
        temporary.write_text(json.dumps(data) + "\n", encoding="utf-8")
        os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path) -> Self:
        data = json.loads(path.read_text(encoding="utf-8"))
        requests = tuple(
            Request(
                **{
                    **request,
                    "row": LoadRow.from_dict(request["row"], where=str(path)),
                    "expected": tuple(request["expected"]),
                }
            )
            for request in data["requests"]
        )
        return cls(**{**data, "name": CellName(**data["name"]), "requests": requests})


def all_cells(folder: Path) -> list[Cell]:
    """Every complete cell of a run."""
    return [Cell.read(path) for path in sorted((folder / "cells").glob("*/*/*.json"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A sweep of one workload, or its series over time, with one seed."""

    workload: str
    seed: int
    series: bool = False
    """Closed loop, one request after another, instead of a sweep of rates."""


def passes_of(workloads: Sequence[str], seeds: int, *, series: bool) -> Iterator[list[Task]]:
    """What to measure, the most telling first: every arm does one list before any does the next.

    A run that is stopped has then measured all arms on what it has measured. Lists are long,
    because an engine is started for each.
    """
    for seed in range(seeds):
        tasks = [Task(workload=workload, seed=seed) for workload in workloads]
        if seed:
            yield tasks
            continue
        first = [task for task in tasks if task.workload in HEADLINE]
        later = [task for task in tasks if task.workload not in HEADLINE]
        if series:
            later.append(Task(workload="over_time", seed=0, series=True))
        yield from (part for part in (first, later) if part)
