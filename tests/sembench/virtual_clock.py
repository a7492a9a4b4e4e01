"""A clock that only simulated work moves.

Shared by a mock engine and the client that times it, it makes a run's times exactly those of
the simulated compute, whatever else the machine is doing. It is for requests one after another;
under concurrency simulated times would add up.
"""

from __future__ import annotations

import threading


class VirtualClock:
    """Moves only when somebody sleeps on it; safe to share between threads."""

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds slept so far by everybody."""
        with self._lock:
            return self._now

    async def sleep(self, seconds: float) -> None:
        """Move on without waiting."""
        with self._lock:
            self._now += seconds
