"""The clock times are taken from: the machine's, unless somebody puts another in its place."""

from __future__ import annotations

import asyncio
import contextlib
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
