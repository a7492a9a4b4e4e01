"""Measures cells in one process or several.

All files of a seed are in one folder. An interrupted run can be resumed with any number of
processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semblend.planning.policies.base import policy_from_spec
from semblend.quality.curves import curves
from semblend.quality.items import to_item
from semblend.quality.lab import Lab
from semblend.quality.processes import lab_of_process, run_processes
from semblend.quality.suite import Cell, Progress, Records, read_records, run_cells

CURVE_ITEMS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementJob:
    """What to measure, and how."""

    model: str
    device: str
    dtype: str
    cells: tuple[Cell, ...]
    seed: int
    folder: Path
    drift: Path | None = None
    """The model's depth-drift table, for policies that shift depths."""
    processes: int = 1
    curves: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Workloads whose K/V deviation is plotted, with the policies to plot."""

    @property
    def shifts_depth(self) -> bool:
        """Whether any policy needs the table."""
        specs = {spec for cell in self.cells for spec in cell.specs if spec != "cold"}
        specs.update(spec for _, drawn in self.curves for spec in drawn)
        return any(policy_from_spec(spec).shifts_depth for spec in specs)

    @property
    def records(self) -> int:
        """Expected number of records, if every item has something to reuse."""
        return sum(cell.items * len(cell.specs) for cell in self.cells)


def folder_of(root: Path, seed: int, dtype: str) -> Path:
    """Folder for a seed's records. Item names contain neither seed nor number format."""
    return root / f"seed-{seed}-{dtype}"


def drift_of(root: Path, dtype: str) -> Path:
    """File for the matching depth-drift table."""
    return root / f"depth-{dtype}.safetensors"


def record_files(folder: Path) -> list[Path]:
    """All record files in a folder."""
    return sorted(folder.glob("records*.jsonl"))


def measure_job(lab: Lab, job: MeasurementJob, tell: Callable[[int], None]) -> None:
    """Measure as the job says, in this process or several. `tell` receives the records done.

    Raises
    ------
    StorageError
        If a process failed. The results of the others are kept.
    """
    if job.processes > 1:
        job.folder.mkdir(parents=True, exist_ok=True)
        run_processes(
            _shard,
            job,
            processes=job.processes,
            kept=job.folder,
            waiting=lambda: tell(sum(_lines(path) for path in record_files(job.folder))),
        )
        return
    specs = {cell.workload: len(cell.specs) for cell in job.cells}
    records: dict[str, int] = {}

    def progress(workload: str, done: int, total: int) -> None:
        records[workload] = done * specs[workload]
        tell(sum(records.values()))

    _measure(lab, job, shard=0, progress=progress)


def _shard(job: MeasurementJob, shard: int) -> None:
    """Do one process's part of a job."""
    drift = job.drift if job.shifts_depth else None
    with lab_of_process(job.model, device=job.device, dtype=job.dtype, drift=drift) as lab:
        _measure(lab, job, shard=shard, progress=lambda workload, done, total: None)


def _measure(lab: Lab, job: MeasurementJob, *, shard: int, progress: Progress) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    name = f"-{shard}" if job.processes > 1 else ""
    records = Records(job.folder / f"records{name}.jsonl")
    others = [path for path in record_files(job.folder) if path != records.path]
    records.leave_out((record.case_id, record.policy) for record in read_records(others))
    run_cells(
        lab, job.cells, records, seed=job.seed, shard=(shard, job.processes), progress=progress
    )
    _draw(lab, job, job.folder / f"curves{name}.jsonl", shard)


def _draw(lab: Lab, job: MeasurementJob, path: Path, shard: int) -> None:
    """Record deviation by layer and by distance, for the first items of a few workloads."""
    if path.exists() or not job.curves:
        return
    lines: list[str] = []
    cells = {cell.workload: cell for cell in job.cells}
    for workload, specs in job.curves:
        if workload not in cells:
            continue
        lines += _curve_lines(lab, cells[workload], specs, job, shard)
    path.write_text("".join(lines), encoding="utf-8")


def _curve_lines(
    lab: Lab, cell: Cell, specs: Sequence[str], job: MeasurementJob, shard: int
) -> list[str]:
    lines: list[str] = []
    for at, case in enumerate(cell.cases(job.seed)):
        if at >= CURVE_ITEMS:
            break
        if at % job.processes == shard:
            item = to_item(case, lab.model.tokenizer)
            lines += [
                json.dumps(curve.to_dict()) + "\n" for curve in curves(lab, item, list(specs))
            ]
    return lines


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")
