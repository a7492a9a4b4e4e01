"""Which cells a certificate is made of, and which policies compete for it.

A policy is *chosen* on documents of one seed and *confirmed* on those of another: the best of
several on the same items is flattered by chance.
"""

from __future__ import annotations

from dataclasses import replace

from semblend.planning.policies.base import known_policies
from semblend.quality.figures import READING
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS, Cell
from semblend.quality.workloads import LENGTHS

MOVED = ("instruction", "reordered", "composed", "gathered", "multi_turn", "continuation")
TELLING = ("edited_exchanged", "composed", "edited_renamed", "continuation")
"""Workloads on which the whole grid is tried: edited and moved text, answers and prose."""

CURVED = ("instruction", "composed", "edited_exchanged")
"""Workloads whose K/V deviation is drawn."""

BASELINES = ("cold", "none")
DRAWN = ("none", "depth_shift(none)")
"""Policies it is drawn under."""


def candidates() -> tuple[str, ...]:
    """What a certificate may name; the others are measured beside them where it tells."""
    return tuple(
        dict.fromkeys(spec for cls in known_policies().values() for spec in cls.candidates)
    )


def grid() -> tuple[str, ...]:
    """Every policy's own grid; a new policy joins by being registered."""
    specs: list[str] = []
    for cls in known_policies().values():
        specs.extend(cls.grid or (cls().spec,))
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
    more: tuple[str, ...] = (),
) -> list[Cell]:
    """What a policy is chosen by: the candidates on moved and edited text, and on `more`.

    Controls choose nothing; they refuse. `policies` are tried instead of the candidates.
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
    """What it is confirmed by: other documents, the controls, and the whole grid where it tells.

    The cells that decide come first, so that an interrupted run has them.
    """
    cells = choice_cells(items, data=data, lengths=lengths, policies=policies, more=more)
    if not policies:
        cells = [
            replace(cell, specs=(*BASELINES, *grid())) if cell.workload in TELLING else cell
            for cell in cells
        ]
    specs = ("none", *(policies or candidates()))
    return cells + [replace(cells[0], workload=name, specs=specs) for name in KINDS_OF_CONTROLS]
