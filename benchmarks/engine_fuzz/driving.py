"""Drives the engine: bursts while others run, aborts, faults, and requests that get stuck."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.engine_fuzz.engine import FuzzEngine, Record
from benchmarks.engine_fuzz.traffic import MOST_TOKENS, Asked, Traffic
from semblend.core.faults import FaultPoint

_DISK = (FaultPoint.DISK_READ, FaultPoint.DISK_FULL, FaultPoint.SLOW_DISK)
_WINDOW = 10
"""Minimum requests during which one point fails more often than the others."""
_OFTEN = 0.3
_QUIET_STEPS = 400
_QUIET_S = 20.0
"""After this many silent steps and seconds, whatever is left is stuck."""
_TRIES = 3


class Progress:
    """Prints how far a phase has come, to standard error, every few seconds."""

    def __init__(self, phase: str, total: int) -> None:
        self._phase, self._total = phase, total
        self._started = self._said = time.monotonic()

    def at(self, done: int, more: str = "") -> None:
        """This many are done."""
        now = time.monotonic()
        if now - self._said < 5.0:
            return
        self._said = now
        left = (now - self._started) / max(done, 1) * (self._total - done)
        print(
            f"{self._phase}: {done} of {self._total}, about {left:.0f} s left {more}",
            file=sys.stderr,
            flush=True,
        )


@dataclass(slots=True)
class Driver:
    """Sends traffic into an engine and records what happens."""

    engine: FuzzEngine
    traffic: Traffic
    seed: int
    in_flight: int
    fault_rate: float
    points: Sequence[FaultPoint]
    """Those the engine's requests pass."""
    records: list[Record] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    fired: Counter[FaultPoint] = field(default_factory=Counter)

    def run(self, requests: int) -> None:
        """Send this many requests, a window of them at a time."""
        progress = Progress("traffic", requests)
        points = list(self.points)
        random.Random(self.seed).shuffle(points)
        window = 0
        while len(self.records) < requests:
            size = max(_WINDOW, -(-requests // len(points)))
            until = min(requests, len(self.records) + size)
            often = points[window % len(points)]
            spec = ",".join(
                f"{point}:{_OFTEN if point is often else self.fault_rate}" for point in points
            )
            if not self.fault_rate:
                spec = ""
            with self.engine.planted(spec, seed=self.seed + window) as faults:
                self._window(until, progress)
            self.fired.update(faults.fired)
            window += 1
        self._to_the_end()

    def spoil_a_load(self) -> bool:
        """Overwrite the K/V of one load after its first token; return whether there was one."""
        for attempt in range(_TRIES):
            donors, target = self.traffic.pair_for(f"spoiled-{attempt}")
            self._send(donors)
            self._to_the_end()
            self.engine.forget_prefixes()
            self._send([replace(target, most=MOST_TOKENS)])
            record, quiet = self.records[-1], _Quiet(self)
            while not (record.answer or record.aborted):
                self._step(quiet)
            spoiled = self.engine.spoil(record)
            self._to_the_end()
            if spoiled:
                return True
        return False

    def every_point_once(self) -> None:
        """Make each point fail that has not yet: a donor is kept, pushed to disk and reused."""
        for point in self.points:
            for attempt in range(_TRIES):
                if self.fired[point]:
                    break
                salt = f"{point}-{attempt}"
                donors, target = self.traffic.pair_for(salt)
                with self.engine.planted(f"{point}:1:2", seed=attempt) as faults:
                    self._send(donors)
                    self._to_the_end()
                    self.engine.forget_prefixes()
                    if point in _DISK:
                        self.engine.push_to_disk(self.traffic.text(self.traffic.longest))
                    self._send([target])
                    self._to_the_end()
                self.fired.update(faults.fired)

    def _window(self, until: int, progress: Progress) -> None:
        rng = random.Random(self.seed * 7919 + until)
        quiet = _Quiet(self)
        while len(self.records) < until:
            running = self._running()
            room = min(self.in_flight - len(running), until - len(self.records))
            if room > 0 and (not running or rng.random() < 0.35):
                self._send(self.traffic.burst(min(room, 12)))
            self._step(quiet)
            progress.at(len(self.records), f"({len(running)} running)")

    def _to_the_end(self) -> None:
        quiet = _Quiet(self)
        while self._running():
            self._step(quiet)
        if not self.engine.drain():
            self.stuck.append("the engine has work left although every request has ended")

    def _step(self, quiet: _Quiet) -> None:
        for record in self._running():
            after = record.asked.abort_after
            if after is not None and self.engine.steps - record.arrived >= after:
                self.engine.abort(record)
        quiet.after(self.engine.step())

    def _send(self, asked: Sequence[Asked]) -> None:
        self.records += [self.engine.add(request) for request in asked]

    def _running(self) -> list[Record]:
        recent = self.records[-4 * self.in_flight - 64 :]
        return [record for record in recent if not (record.finished or record.aborted)]


class _Quiet:
    """Watches for requests that will never produce output again, and gives them up."""

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._clock = driver, clock
        self._steps, self._since = 0, clock()

    def after(self, outputs: int) -> None:
        """A step in which this many requests produced output."""
        driver = self._driver
        if outputs or not driver._running():
            self._steps, self._since = 0, self._clock()
            return
        self._steps += 1
        if self._steps < _QUIET_STEPS or self._clock() - self._since < _QUIET_S:
            return
        for record in driver._running():
            driver.stuck.append(str(record.asked))
            driver.engine.abort(record)
        self._steps, self._since = 0, self._clock()
