"""What reuse does to a relative: drift curves and a leaderboard in the lab, then `certify`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from semblend.core.errors import SemBlendError
from semblend.engine.model import load_model
from semblend.planning.certificates import Certificate
from semblend.quality.certifying import CURVED, DRAWN, TELLING, candidates
from semblend.quality.curves import Curve, curves
from semblend.quality.drift import measure_drift
from semblend.quality.figures import figures_of
from semblend.quality.items import to_item
from semblend.quality.lab import Lab
from semblend.quality.suite import Cell, Records, read_records, run_cells
from semblend.terminal.measured_engines import unshifted

CURVE_ITEMS = 8
SEED = 3
RESULTS = "results.json"


@dataclass(slots=True, kw_only=True)
class Results:
    """All that is known about one relative."""

    name: str
    changed: str
    facts: float | None = None
    """Share of held-out facts that it finds cold."""
    learned: dict[str, Any] = field(default_factory=dict)
    deviation: dict[str, list[float]] = field(default_factory=dict)
    """By "workload, policy": mean relative deviation of copied K/V, layer by layer."""
    leaderboard: list[dict[str, Any]] = field(default_factory=list)
    certified: str = ""
    """The policy; empty: none."""
    engine: str = ""
    refusal: str = ""
    """Why there is no certificate, or why the lab could not measure it."""
    redteam: str = ""

    def write(self, folder: Path) -> None:
        """Beside the weights."""
        text = json.dumps(asdict(self), indent=1)
        (folder / RESULTS).write_text(text + "\n", encoding="utf-8")


def read_results(folder: Path) -> Results:
    """What a former step wrote."""
    return Results(**json.loads((folder / RESULTS).read_text(encoding="utf-8")))


def policies() -> tuple[str, ...]:
    """Naive reuse, what only shifts depths, and the candidates with their shift and without."""
    best = candidates()
    return tuple(dict.fromkeys(("cold", *DRAWN, *best, *map(unshifted, best))))


def in_the_lab(
    folder: Path, found: Results, *, items: int, lengths: tuple[int, ...], device: str, dtype: str
) -> None:
    """Fill in curves and leaderboard; a model that the embedded engine refuses has none."""
    try:
        model = load_model(str(folder), device=device, dtype=dtype)
    except SemBlendError as error:
        found.refusal = f"not measured in the lab: {error}"
        return
    lab = Lab(model)
    try:
        lab.use_drift(measure_drift(lab, length=max(lengths)))
        for workload in CURVED:
            cell = Cell(workload=workload, items=CURVE_ITEMS, specs=DRAWN, lengths=lengths)
            drawn: list[Curve] = []
            for case in cell.cases(SEED):
                drawn += curves(lab, to_item(case, model.tokenizer), list(DRAWN))
            for spec in DRAWN:
                layers = [curve.layers for curve in drawn if curve.policy == spec]
                means = [round(fmean(layer), 4) for layer in zip(*layers, strict=True)]
                found.deviation[f"{workload}, {spec}"] = means
        cells = [
            Cell(workload=name, items=items, specs=policies(), lengths=lengths) for name in TELLING
        ]
        path = folder / "leaderboard.jsonl"
        run_cells(lab, cells, Records(path), seed=SEED)
        found.leaderboard = [row.to_dict() for row in figures_of(read_records([path]))]
    finally:
        lab.close()


def certified(
    folder: Path, found: Results, *, engine: str, lengths: Sequence[int], more: Sequence[str]
) -> None:
    """Run `semblend certify` as a user would, and note how it ended."""
    output = folder / "certificates"
    command = [
        *(sys.executable, "-m", "semblend.cli.main", "certify", "--model", str(folder)),
        *("--engine", engine, "--until-sure"),
        *("--output", str(output), "--records", str(folder / "records")),
        *(word for length in lengths for word in ("--length", str(length))),
        *more,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "certify.log").write_text(ended.stdout + ended.stderr, encoding="utf-8")
    found.engine = engine
    written = sorted(output.glob("*.json")) if ended.returncode == 0 else []
    if not written:
        said = [line for line in ended.stdout.splitlines() if line.startswith("no certificate")]
        found.refusal = (said or (ended.stderr or ended.stdout).splitlines() or ["?"])[-1]
        return
    certificate = Certificate.from_json(written[-1].read_text(encoding="utf-8"))
    found.certified, found.refusal = certificate.policy, ""
    redteam = certificate.figures.get("redteam")
    found.redteam = f"{redteam['leaks']} of {redteam['items']}" if redteam else "none"
