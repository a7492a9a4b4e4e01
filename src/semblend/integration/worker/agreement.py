"""What all ranks have answered, where they cannot agree in the middle of a step.

Every rank is given the same orders and keeps the same list of those that are open. At one
point of every step that all ranks reach together they exchange what each has done, and strike
from the list what everybody has answered. So the lists stay alike, and a rank knows from its own
list whether to exchange.
"""

from __future__ import annotations

from collections.abc import Callable

from semblend.integration.scheduler.orders import StepOrders, WorkerReport

Gather = Callable[[WorkerReport], list[WorkerReport]]
"""Every rank's report, in order of rank."""

_BY_ORDER = (
    "captured",
    "capture_ms",
    "capture_bytes",
    "answered",
    "rejected",
    "loaded",
    "failed",
)


class Agreement:
    """One rank's part in it. One thread calls it."""

    def __init__(self, *, ranks: int, gather: Gather) -> None:
        self._gather = gather if ranks > 1 else _alone
        self._open: set[str] = set()
        """Requests that are loaded, and donors that are captured."""
        self._said = [WorkerReport() for _ in range(ranks)]

    @property
    def is_open(self) -> bool:
        """Whether some order waits for an answer: only then do ranks exchange."""
        return bool(self._open)

    def expect(self, orders: StepOrders) -> None:
        """The orders every rank was just given."""
        self._open.update(load.request_id for load in orders.loads)
        self._open.update(capture.donor_id for capture in orders.captures)

    def exchange(self, mine: WorkerReport) -> WorkerReport:
        """What every rank has answered by now; all ranks call it at the same point of a step."""
        news = self._gather(mine)
        self._said = [said + new for said, new in zip(self._said, news, strict=True)]
        done = {one for one in self._open if all(_has_answered(said, one) for said in self._said)}
        self._open -= done
        agreed = WorkerReport()
        for said in self._said:
            agreed = agreed + _take(said, done)
        return agreed


def _alone(mine: WorkerReport) -> list[WorkerReport]:
    return [mine]


def _has_answered(said: WorkerReport, order: str) -> bool:
    return order in said.loaded or order in said.failed or order in said.answered


def _take(said: WorkerReport, orders: set[str]) -> WorkerReport:
    """Move the answers to these orders out of a rank's report, with what belongs to none."""
    taken = WorkerReport(lost=said.lost, layers=said.layers, load_ms=said.load_ms)
    said.lost, said.load_ms = set(), 0.0
    for name in _BY_ORDER:
        answers = getattr(said, name)
        for order in orders & answers.keys():
            getattr(taken, name)[order] = answers.pop(order)
    return taken
