"""A complete certification: choose on one seed, confirm on another, judge, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semblend.engine.model import LoadedModel
from semblend.kv.depth_drift import table_digest
from semblend.quality.bound import Bound, choose
from semblend.quality.certifying import CURVED, DRAWN, choice_cells, confirmation_cells
from semblend.quality.curves import Curve
from semblend.quality.figures import cell_of
from semblend.quality.issuing import CertificatePart, Issue, issue, part_of, read_curves
from semblend.quality.items import data_fingerprint
from semblend.quality.redteam.finds import Findings
from semblend.quality.redteam.jobs import RedTeamJob
from semblend.quality.shards import MeasurementJob, drift_of, folder_of, record_files
from semblend.quality.suite import Cell, read_records

Measure = Callable[[MeasurementJob], None]
Attack = Callable[[RedTeamJob], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to certify, on which data, within which bound."""

    model: LoadedModel
    path: str
    device: str
    dtype: str
    folder: Path
    items: int
    seed: int
    confirm_seed: int
    bound: Bound
    redteam_seed: int | None = None
    """The confirming seed unless told."""
    policies: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    workloads: tuple[str, ...] = ()
    """Beside those that every certificate rests on."""
    data: str | None = None
    processes: int = 1
    measured_on: str = ""
    command: str = ""
    """The command line, for repeating the run."""

    @property
    def number_format(self) -> str:
        """The model's number format, with "auto" resolved."""
        return str(self.model.kv_shape.dtype).removeprefix("torch.")

    @property
    def hardware(self) -> str:
        """The hardware, as given or as torch names it."""
        device = self.model.device
        named = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        return self.measured_on or named

    @property
    def drift(self) -> Path:
        """The depth-drift table that all measurements use."""
        return drift_of(self.folder, self.number_format)

    @property
    def amount(self) -> int:
        """Records and red-team items of a run that reaches its end."""
        parts = (choice_cells, confirmation_cells)
        cells = [cell for part in parts for cell in part(self.items, **self._options)]
        records = sum(cell.items * len(cell.specs) for cell in cells)
        return records + self.bound.redteam_items

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "lengths": self.lengths or None,
            "policies": self.policies,
            "more": self.workloads,
        }

    def run(self, measure: Measure, attack: Attack) -> tuple[Issue, list[Curve]]:
        """Run everything. `measure` and `attack` execute jobs, or do nothing if records exist."""
        cells = choice_cells(self.items, **self._options)
        choice = self._part(cells, self.seed, measure)
        confirmation, others, curves, redteam = None, [], [], None
        chosen = choose(choice.judged_policies)
        if chosen is not None:
            others = confirmation_cells(self.items, **self._options)
            confirmation = self._part(others, self.confirm_seed, measure, curved=CURVED)
            folder = folder_of(self.folder, self.confirm_seed, self.number_format)
            curves = read_curves(sorted(folder.glob("curves*.jsonl")))
            redteam = self._redteam(chosen.policy, folder, attack)
        found = issue(
            choice,
            confirmation,
            curves,
            model=self.model,
            bound=self.bound,
            data={
                "chosen_on": self._data(cells, self.seed, choice),
                "confirmed_on": None
                if confirmation is None
                else self._data(others, self.confirm_seed, confirmation),
                "real_text": self.data,
                "command": self.command,
                "depth_table": table_digest(self.drift.read_bytes())
                if self.drift.exists()
                else None,
            },
            measured_on=self.hardware,
            redteam=redteam,
        )
        return found, curves

    def _redteam(self, policy: str, folder: Path, attack: Attack) -> Findings | None:
        """The red team's findings on the chosen policy."""
        if not self.bound.redteam_items:
            return None
        job = RedTeamJob(
            model=self.path,
            device=self.device,
            dtype=self.dtype,
            policy=policy,
            seed=self.confirm_seed if self.redteam_seed is None else self.redteam_seed,
            folder=folder,
            drift=self.drift,
            items=self.bound.redteam_items,
            processes=self.processes,
        )
        attack(job)
        return job.findings if job.files else None

    def _part(
        self, cells: Sequence[Cell], seed: int, measure: Measure, *, curved: tuple[str, ...] = ()
    ) -> CertificatePart:
        folder = folder_of(self.folder, seed, self.number_format)
        measure(
            MeasurementJob(
                model=self.path,
                device=self.device,
                dtype=self.dtype,
                cells=tuple(cells),
                seed=seed,
                folder=folder,
                drift=self.drift,
                processes=self.processes,
                curves=tuple((name, DRAWN) for name in curved),
            )
        )
        wanted = {cell.workload: set(cell.specs) for cell in cells}
        records = read_records(record_files(folder))
        # The folder may hold more: other policies, or real text from another run.
        mine = [r for r in records if r.policy in wanted.get(cell_of(r), ())]
        order = list(wanted)
        return part_of(sorted(mine, key=lambda r: order.index(cell_of(r))), self.bound)

    def _data(self, cells: Sequence[Cell], seed: int, part: CertificatePart) -> dict[str, Any]:
        return {
            "seed": seed,
            "items": self.items,
            "records": len(part.records),
            "workloads": sorted({cell.workload for cell in cells}),
            "fingerprint": data_fingerprint(case for cell in cells for case in cell.cases(seed)),
        }
