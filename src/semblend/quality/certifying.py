"""Which cells a certificate is made of, and which policies compete for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semblend.planning.policies.base import known_policies
from semblend.planning.policies.budget import Budget
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS, Cell
from semblend.quality.workloads import LENGTHS

MOVED = ("instruction", "reordered", "composed", "multi_turn", "continuation")
TELLING = ("edited_exchanged", "composed", "edited_renamed", "continuation")
"""Workloads on which the whole grid is tried: edited and moved text, answers and prose."""

CURVED = ("instruction", "composed", "edited_exchanged")
"""Workloads whose K/V deviation is drawn."""

BASELINES = ("cold", "none")
CANDIDATES = Budget.grid
"""What a certificate may name, from cheap to cautious."""


def grid() -> tuple[str, ...]:
    """Every policy's own grid; a new policy joins by being registered."""
    specs: list[str] = []
    for name, cls in known_policies().items():
        specs.extend(cls.grid or (cls().spec if name != "none" else name,))
    return tuple(dict.fromkeys(spec for spec in specs if spec not in BASELINES))


def leaderboard_cells(items: int, *, lengths: tuple[int, ...] = LENGTHS) -> list[Cell]:
    """The whole grid on the telling workloads."""
    specs = (*BASELINES, *grid())
    return [Cell(workload=name, items=items, specs=specs, lengths=lengths) for name in TELLING]


def certificate_cells(
    items: int,
    *,
    data: Path | None = None,
    lengths: tuple[int, ...] | None = None,
    policies: tuple[str, ...] = (),
) -> list[Cell]:
    """Everything a certificate asks: the candidates everywhere, the whole grid where it tells.

    The cells that decide come first, so that an interrupted run has them. `policies` are
    tried instead of the candidates and the grid.
    """
    core = (*BASELINES, *(policies or CANDIDATES))
    plan = [(name, core[1:]) for name in KINDS_OF_CONTROLS]
    plan += [(name, core) for name in (*KINDS_OF_EDITS, *MOVED) if name not in TELLING]
    cells = [Cell(workload=name, items=items, specs=specs) for name, specs in plan]
    if data is not None:
        cells.append(Cell(workload="reading", items=items, specs=core, data=data))
    for cell in leaderboard_cells(items):
        cells.append(replace(cell, specs=core) if policies else cell)
    return [replace(cell, lengths=lengths) for cell in cells] if lengths else cells
