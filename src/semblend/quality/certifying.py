"""The cells a certificate is based on, and the policies that compete for it.

A policy is *chosen* on documents of one seed and *confirmed* on those of another, because the best
of several on the same items looks better than it is.
"""

from __future__ import annotations

from dataclasses import replace

from semblend.planning.policies.base import known_policies
from semblend.quality.figures import READING
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS, Cell
from semblend.quality.texts.workloads import LENGTHS

MOVED = ("instruction", "reordered", "composed", "gathered", "multi_turn", "continuation")
TELLING = ("edited_exchanged", "composed", "edited_renamed", "continuation")
"""Workloads that get the full grid: edited and moved text, answers and prose."""

CURVED = ("instruction", "composed", "edited_exchanged")
"""Workloads whose K/V deviation is plotted."""

BASELINES = ("cold", "none")
DRAWN = ("none", "depth_shift(none)")
"""Policies it is plotted for."""


def candidates() -> tuple[str, ...]:
    """Policies that a certificate may name. Others are measured too, on the workloads that tell."""
    return tuple(
        dict.fromkeys(spec for cls in known_policies().values() for spec in cls.candidates)
    )


def grid() -> tuple[str, ...]:
    """Every policy's own grid. Registering a policy adds it."""
    specs: list[str] = []
    for cls in known_policies().values():
        specs.extend(cls.grid or (cls().spec,))
    return tuple(dict.fromkeys(spec for spec in specs if spec not in BASELINES))


def leaderboard_cells(items: int, *, lengths: tuple[int, ...] = LENGTHS) -> list[Cell]:
    """The full grid on the telling workloads."""
    specs = (*BASELINES, *grid())
    return [Cell(workload=name, items=items, specs=specs, lengths=lengths) for name in TELLING]


def choice_cells(
    items: int,
    *,
    data: str | None = None,
    lengths: tuple[int, ...] | None = None,
    policies: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> list[Cell]:
    """What a policy is chosen by: the candidates on moved and edited text, and on `more`.

    Controls only reject, they do not choose. `policies` replaces the candidates.
    """
    core = (*BASELINES, *(policies or candidates()))
    names = dict.fromkeys((*TELLING, *MOVED, *KINDS_OF_EDITS, *more))
    cells = [Cell(workload=name, items=items, specs=core) for name in names]
    if data is not None:
        cells.append(Cell(workload=READING, items=items, specs=core, data=data))
    return [replace(cell, lengths=lengths) for cell in cells] if lengths else cells


def confirmation_cells(
    items: int,
    *,
    data: str | None = None,
    lengths: tuple[int, ...] | None = None,
    policies: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> list[Cell]:
    """Cells for confirming it: other documents, the controls, and the grid where it tells.

    The deciding cells come first, so that an interrupted run has them.
    """
    cells = choice_cells(items, data=data, lengths=lengths, policies=policies, more=more)
    if not policies:
        cells = [
            replace(cell, specs=(*BASELINES, *grid())) if cell.workload in TELLING else cell
            for cell in cells
        ]
    specs = ("none", *(policies or candidates()))
    return cells + [replace(cells[0], workload=name, specs=specs) for name in KINDS_OF_CONTROLS]
