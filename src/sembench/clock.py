"""The clock that times live runs: the machine's, unless a test replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """A source of time that can also wait."""

    def now(self) -> float:
        """Seconds, from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class MachineClock:
    def now(self) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_CURRENT: ContextVar[Clock] = ContextVar("sembench_clock")
_MACHINE = MachineClock()


def current_clock() -> Clock:
    """The clock live runs use: the machine's unless :func:`use_clock` replaced it."""
    return _CURRENT.get(_MACHINE)


@contextlib.contextmanager
def use_clock(clock: Clock) -> Iterator[Clock]:
    """Use `clock` inside a with block."""
    token = _CURRENT.set(clock)
    try:
        yield clock
    finally:
        _CURRENT.reset(token)
