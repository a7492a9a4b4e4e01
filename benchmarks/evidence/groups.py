"""Cells by arm and workload, and which of them may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.evidence.cells import ONE_BY_ONE, Cell

COLD = "no_cache"
PREFIX = "prefix_cache"
OURS = "semblend"


@dataclass(slots=True)
class Groups:
    """All cells of a run, found by what they are."""

    cells: Sequence[Cell]
    _swept: dict[tuple[str, str], list[Cell]] = field(init=False)
    _series: dict[str, Cell] = field(init=False)

    def __post_init__(self) -> None:
        self._swept, self._series = {}, {}
        for cell in sorted(self.cells, key=lambda each: (each.name.rate, each.name.seed)):
            if cell.name.rate == ONE_BY_ONE:
                self._series[cell.name.arm] = cell
            else:
                self._swept.setdefault((cell.name.arm, cell.name.workload), []).append(cell)

    @property
    def workloads(self) -> list[str]:
        """Workloads that were swept, in the order of their cells."""
        return list(dict.fromkeys(workload for _, workload in self._swept))

    def swept(self, arm: str, workload: str) -> list[Cell]:
        """Cells of an arm and a workload by rising rate."""
        return self._swept.get((arm, workload), [])

    def series(self, arm: str) -> Cell | None:
        """An arm's series over time."""
        return self._series.get(arm)

    def lowest(self, arm: str, workload: str, *other: str) -> list[Cell] | None:
        """Cells of `arm` and each of `other`, of one seed, at the lowest rate all have measured."""
        arms = (arm, *other)
        keys = [
            {(cell.name.rate, cell.name.seed): cell for cell in self.swept(name, workload)}
            for name in arms
        ]
        common = set.intersection(*(set(each) for each in keys))
        return [each[min(common)] for each in keys] if common else None
