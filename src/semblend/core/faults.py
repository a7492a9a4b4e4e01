"""Fault injection: named points at every boundary, each of which can be made to fail.

A point that is not planted costs one variable lookup. A planted point fails as the real thing
would: a full disk, no memory, a wrong checksum. Tests plant with :func:`planted`. The hidden
setting SEMBLEND_FAULTS plants for a whole process:

    SEMBLEND_FAULTS="tier_read:0.01,checksum:0.001,disk_full:1:3"

fails one read in a hundred, one checksum in a thousand, and the first three writes.
"""

from __future__ import annotations

import errno
import functools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec, TypeVar

from semblend.core.errors import CapacityError, DonorError, SettingsError

logger = logging.getLogger("semblend.faults")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SLOW_DISK_S = 0.02
CLOCK_JUMP_S = 20 * 365 * 86_400.0


class FaultPoint(StrEnum):
    """Every boundary that can be made to fail."""

    INDEX_WRITE = "index_write"
    """The index raises while adding a donor's tokens."""
    INDEX_READ = "index_read"
    """The index raises during a lookup."""
    PLAN = "plan"
    """The planner raises."""
    LEASE = "lease"
    """A donor disappears between planning and loading."""
    TIER_READ = "tier_read"
    """A K/V tier raises while a segment is leased."""
    TIER_WRITE = "tier_write"
    """A K/V tier raises while a segment is stored."""
    CHECKSUM = "checksum"
    """A checksum of K/V comes out wrong."""
    DISK_READ = "disk_read"
    """The disk fails to read."""
    DISK_FULL = "disk_full"
    """The disk becomes full in the middle of a file."""
    SLOW_DISK = "slow_disk"
    """The disk is slow."""
    ALLOCATION = "allocation"
    """No memory is left for a copy of K/V."""
    POOL = "pool"
    """The engine's own pool has no room."""
    COPY = "copy"
    """Copying donor K/V raises after some of it is in place."""
    NESTED_PASS = "nested_pass"
    """The pass over holes raises."""
    CAPTURE = "capture"
    """Reading a finished prompt's K/V out of the engine raises."""
    SETTLEMENT = "settlement"
    """The ledger raises while settling a request."""
    TRANSPORT_READ = "transport_read"
    """The shared store fails to read."""
    TRANSPORT_WRITE = "transport_write"
    """The shared store fails to write."""
    EVENT_BUS = "event_bus"
    """The event log cannot be reached."""
    CLOCK = "clock"
    """The clock jumps years ahead and back again."""
    KILLED_WORKER = "killed_worker"
    """A background thread dies in the middle of its work."""


class InjectedError(Exception):
    """Not a SemBlend error: no code may rely on the type of error."""


class KilledWorkerError(BaseException):
    """Passes every `except Exception`, as a dying thread does."""


def _raise_io(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, "injected")

    return fail


def _raise_memory() -> None:
    raise MemoryError("injected")


def _raise_capacity() -> None:
    raise CapacityError("injected")


def _raise_gone() -> None:
    raise DonorError("injected: the donor is gone")


def _kill() -> None:
    raise KilledWorkerError("injected")


_EFFECTS: dict[FaultPoint, Callable[[], None]] = {
    FaultPoint.DISK_READ: _raise_io(errno.EIO),
    FaultPoint.DISK_FULL: _raise_io(errno.ENOSPC),
    FaultPoint.SLOW_DISK: lambda: time.sleep(SLOW_DISK_S),
    FaultPoint.TRANSPORT_READ: _raise_io(errno.ECONNRESET),
    FaultPoint.TRANSPORT_WRITE: _raise_io(errno.ECONNRESET),
    FaultPoint.EVENT_BUS: _raise_io(errno.ECONNREFUSED),
    FaultPoint.ALLOCATION: _raise_memory,
    FaultPoint.POOL: _raise_capacity,
    FaultPoint.LEASE: _raise_gone,
    FaultPoint.KILLED_WORKER: _kill,
}
"""How points fail. Those not listed raise :class:`InjectedError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How often one point fails."""

    point: FaultPoint
    rate: float = 1.0
    times: int | None = None
    """Upper limit; None for no limit."""


class Planted:
    """Decides which visits to a point fail. Thread-safe and repeatable."""

    def __init__(self, faults: tuple[Fault, ...], *, seed: int = 0) -> None:
        self._faults = {fault.point: fault for fault in faults}
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.fired: Counter[FaultPoint] = Counter()

    def fires(self, point: FaultPoint) -> bool:
        """Whether this visit to the point fails. Counts it if so."""
        fault = self._faults.get(point)
        if fault is None:
            return False
        with self._lock:
            if fault.times is not None and self.fired[point] >= fault.times:
                return False
            if fault.rate < 1.0 and self._random.random() >= fault.rate:
                return False
            self.fired[point] += 1
            return True

    def reach(self, point: FaultPoint) -> None:
        """Fail in the point's way if this visit is chosen."""
        if self.fires(point):
            effect = _EFFECTS.get(point)
            if effect is None:
                raise InjectedError(point.value)
            effect()


_planted: Planted | None = None


def reach(point: FaultPoint) -> None:
    """Visit a boundary; fails if the point is planted and this visit is chosen."""
    now = _planted  # another thread may plant or remove faults meanwhile
    if now is not None:
        now.reach(point)


def fault_point(
    point: FaultPoint, *, after: bool = False
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make a function a boundary that fails before it starts, or `after` its work."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if _planted is None:
                return function(*args, **kwargs)
            if not after:
                reach(point)
            result = function(*args, **kwargs)
            if after:
                reach(point)
            return result

        return guarded

    return decorate


def spoiled(point: FaultPoint, value: int) -> int:
    """The value, with its lowest bit flipped if the point fires."""
    now = _planted
    return value ^ 1 if now is not None and now.fires(point) else value


def clock_jump_s() -> float:
    """Current clock error in seconds: 0, or alternately twenty years ahead and back."""
    now = _planted
    if now is None or not now.fires(FaultPoint.CLOCK):
        return 0.0
    return CLOCK_JUMP_S if now.fired[FaultPoint.CLOCK] % 2 else -CLOCK_JUMP_S


@contextmanager
def planted(faults: str, *, seed: int = 0) -> Iterator[Planted]:
    """Plant faults, spelled as in SEMBLEND_FAULTS, until the block ends. For tests."""
    global _planted
    before, mine = _planted, Planted(parse_faults(faults), seed=seed)
    _planted = mine
    try:
        yield mine
    finally:
        _planted = before


def plant(faults: str) -> None:
    """Plant faults permanently in this process. An empty string does nothing."""
    global _planted
    if faults:
        logger.warning("fault injection is on: %s", faults)
        _planted = Planted(parse_faults(faults))


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parse `point[:rate[:times]],…`.

    Raises
    ------
    SettingsError
        Saying what is wrong and what is expected.
    """
    return tuple(_parse_fault(item.strip()) for item in text.split(",") if item.strip())


def _parse_fault(item: str) -> Fault:
    name, *numbers = item.split(":")
    try:
        point = FaultPoint(name)
    except ValueError:
        known = ", ".join(FaultPoint)
        raise SettingsError(f"fault point {name!r}: expected one of {known}") from None
    try:
        rate = float(numbers[0]) if numbers else 1.0
        times = int(numbers[1]) if len(numbers) > 1 else None
    except ValueError:
        raise SettingsError(f"fault {item!r}: expected point:rate:times") from None
    if len(numbers) > 2 or not 0.0 <= rate <= 1.0 or (times is not None and times < 1):
        raise SettingsError(
            f"fault {item!r}: expected a rate from 0 to 1 and a count of at least 1"
        )
    return Fault(point=point, rate=rate, times=times)
