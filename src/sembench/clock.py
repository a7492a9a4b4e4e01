"""The clock times are taken from: the machine's, or a virtual one that only simulated work moves.

A virtual clock shared by a mock engine and the client that times it makes a run's times
exactly those of the simulated compute, whatever else the machine is doing. It is for
requests one after another; under concurrency simulated times would add up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def now(self) -> float:
        """Seconds, from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class MachineClock:
    """The machine's own."""

    def now(self) -> float:
        """Seconds of the performance counter."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Really wait."""
        await asyncio.sleep(seconds)


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


_CURRENT: ContextVar[Clock] = ContextVar("sembench_clock")
_MACHINE = MachineClock()


def current_clock() -> Clock:
    """The clock live runs take times from: the machine's unless :func:`use_clock` says else."""
    return _CURRENT.get(_MACHINE)


@contextlib.contextmanager
def use_clock(clock: Clock) -> Iterator[Clock]:
    """Take times from `clock` for the length of a block."""
    token = _CURRENT.set(clock)
    try:
        yield clock
    finally:
        _CURRENT.reset(token)
