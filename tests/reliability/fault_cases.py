"""What the fault-point tests of all engines share: when a fault is planted, what is then said."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semblend.core.faults import FaultPoint
from semblend.core.outcomes import DeclineReason
from tests.reliability.fault_results import record

KEEPING, REUSING = "keeping", "reusing"
"""Phases: while the donor is kept, while it is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """When a point is planted, and what becomes of the request that would have reused."""

    point: FaultPoint
    phase: str
    reason: DeclineReason | None
    """None: the fault costs time and nothing else."""
    times: str = ""
    """How often it fails, as SEMBLEND_FAULTS spells it; always, if nothing is said."""

    def __str__(self) -> str:
        return f"{self.point.value}-{self.phase}{self.times}"

    @property
    def spec(self) -> str:
        """The fault, as SEMBLEND_FAULTS spells it."""
        return self.point.value + self.times

    def record(self, engine: str, *, served: str = "served as usual") -> None:
        """Note in the table of docs/reliability.md what became of it."""
        declined = self.reason and f"{self.reason.outcome}: {self.reason}"
        record(engine, self.point, declined or served)


def name_the_others(
    engine: str, tried: Collection[FaultPoint], others: Mapping[FaultPoint, str]
) -> None:
    """Every point is tried, or there is a reason why this engine has no such boundary."""
    assert set(tried) | set(others) == set(FaultPoint)
    for point, why in others.items():
        record(engine, point, f"– ({why})")
