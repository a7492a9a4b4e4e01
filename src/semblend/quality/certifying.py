"""Which cells a certificate is made of, and which policies compete for it."""

from __future__ import annotations

from pathlib import Path

from semblend.planning.policies.base import known_policies
from semblend.planning.policies.budget import Budget
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS, Cell

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


def certificate_cells(
    items: int, *, candidates: tuple[str, ...] = CANDIDATES, data: Path | None = None
) -> list[Cell]:
    """Everything a certificate asks: the candidates everywhere, the whole grid where it tells.

    The cells that decide come first, so that an interrupted run has them.
    """
    core = (*BASELINES, *candidates)
    wide = tuple(dict.fromkeys((*core, *grid())))
    cells = [Cell(workload=name, items=items, specs=core[1:]) for name in KINDS_OF_CONTROLS]
    for name in (*KINDS_OF_EDITS, *MOVED):
        if name not in TELLING:
            cells.append(Cell(workload=name, items=items, specs=core))
    if data is not None:
        cells.append(Cell(workload="reading", items=items, specs=core, data=data))
    cells.extend(Cell(workload=name, items=items, specs=wide) for name in TELLING)
    return cells
