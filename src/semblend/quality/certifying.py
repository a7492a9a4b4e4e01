"""Which cells a certificate is made of, and which policies compete for it.

A policy is *chosen* on documents of one seed and *confirmed* on those of another, which
nobody looked at before: the best of several on the same items is flattered by chance.
"""

from __future__ import annotations

from dataclasses import replace

from semblend.planning.policies.base import known_policies
from semblend.planning.policies.budget import Budget
from semblend.quality.figures import READING
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS, Cell
from semblend.quality.workloads import LENGTHS

MOVED = ("instruction", "reordered", "composed", "gathered", "multi_turn", "continuation")
TELLING = ("edited_exchanged", "composed", "edited_renamed", "continuation")
"""Workloads on which the whole grid is tried: edited and moved text, answers and prose."""

CURVED = ("instruction", "composed", "edited_exchanged")
"""Workloads whose K/V deviation is drawn."""

BASELINES = ("cold", "none")
CANDIDATES = Budget.grid
"""What a certificate may name, from cheap to cautious. All are confirmed, so that the price of
caution is known on fresh documents too; only the chosen one's confirmation counts."""


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


def choice_cells(
    items: int,
    *,
    data: str | None = None,
    lengths: tuple[int, ...] | None = None,
    policies: tuple[str, ...] = (),
) -> list[Cell]:
    """What a policy is chosen by: the candidates everywhere, the whole grid where it tells.

    The cells that decide come first, so that an interrupted run has them. `policies` are
    tried instead of the candidates and the grid.
    """
    cells = confirmation_cells(items, policies or CANDIDATES, data=data, lengths=lengths)
    if policies:
        return cells
    told = {cell.workload: cell for cell in leaderboard_cells(items)}
    return [
        replace(cell, specs=told[cell.workload].specs) if cell.workload in told else cell
        for cell in cells
    ]


def confirmation_cells(
    items: int,
    policies: tuple[str, ...],
    *,
    data: str | None = None,
    lengths: tuple[int, ...] | None = None,
) -> list[Cell]:
    """Some policies on every workload, beside cold and naive reuse."""
    core = (*BASELINES, *policies)
    plan = [(name, core) for name in dict.fromkeys((*TELLING, *MOVED, *KINDS_OF_EDITS))]
    plan += [(name, core[1:]) for name in KINDS_OF_CONTROLS]
    cells = [Cell(workload=name, items=items, specs=specs) for name, specs in plan]
    if data is not None:
        cells.append(Cell(workload=READING, items=items, specs=core, data=data))
    return [replace(cell, lengths=lengths) for cell in cells] if lengths else cells
