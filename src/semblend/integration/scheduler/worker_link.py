"""The way back from the ranks, where an engine carries orders in one direction only.

Scheduler and leading worker then share a process, and what the ranks agreed on comes back here.
"""

from __future__ import annotations

import threading
from typing import Any

from semblend.integration.scheduler.orders import WorkerReport


class WorkerLink:
    """The way back from the leader's worker to its scheduler. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._reports: list[WorkerReport] = []
        self._notes: list[tuple[str, dict[str, Any]]] = []
        self.token_bytes = 0
        """Bytes of one token's K/V on one rank; 0 before the pool is registered."""
        self.layers = 0
        """Layers of the pool."""
        self.refusals: tuple[str, ...] = ()
        """Why this pool is not used, if it is not."""

    def note(self, event: str, **fields: Any) -> None:
        """Something for the audit stream, which is the scheduler's."""
        with self._lock:
            self._notes.append((event, fields))

    def take_notes(self) -> list[tuple[str, dict[str, Any]]]:
        """Notes since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    def registered(self, *, token_bytes: int, layers: int) -> None:
        """The pool is known and can be read and written."""
        self.layers, self.token_bytes = layers, token_bytes

    def refused(self, reasons: tuple[str, ...]) -> None:
        """The pool is of a kind this adapter was not proven with."""
        self.refusals = reasons

    def report(self, report: WorkerReport) -> None:
        """What all ranks have answered."""
        with self._lock:
            self._reports.append(report)
            self._lock.notify_all()

    def take(self) -> list[WorkerReport]:
        """Answers since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def wait(self, timeout_s: float) -> None:
        """Wait until there is an answer to take, or the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._reports), timeout=timeout_s)

    @property
    def is_ready(self) -> bool:
        """Whether there is a pool that can be used."""
        return self.token_bytes > 0 and not self.refusals
