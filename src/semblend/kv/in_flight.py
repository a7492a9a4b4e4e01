"""Keeps memory alive while a device still reads or writes it.

Copies are queued and return at once. What they touch must not move until the device is done, even
if its owner releases it meanwhile. torch handles its own allocations, but nothing does for our
memory or for kernels that read host memory over the bus.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class InFlight:
    """References that are dropped once an event has passed. Thread-safe."""

    def __init__(self) -> None:
        self._held: deque[tuple[Any, object, Callable[[], None] | None]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, event: Any, things: object, *, then: Callable[[], None] | None = None) -> None:
        """Keep `things` until the recorded `event` has passed, then call `then`.

        Checked when something else is held, or by :meth:`sweep`.
        """
        self.sweep()
        with self._lock:
            self._held.append((event, things, then))

    def sweep(self) -> None:
        """Release what is done."""
        done = []  # dropped outside the lock, because destructors may come back here
        with self._lock:
            while self._held and self._held[0][0].query():
                done.append(self._held.popleft())
        for _, _, then in done:
            if then is not None:
                then()


IN_FLIGHT = InFlight()
"""One for the process, as are a device's queues."""
