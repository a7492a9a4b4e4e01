"""Memory that a device still reads or writes: kept until it has got there.

Copies are queued and return at once. What they touch must stay where it is until the device
is done, also if its owner lets go of it meanwhile; torch sees to its own allocations,
nobody does for memory of ours or for kernels that read host memory over the bus.
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
        """Keep `things` until `event`, which is recorded, has passed; `then` is called then.

        Looked at when something else is held, or by :meth:`sweep`.
        """
        self.sweep()
        with self._lock:
            self._held.append((event, things, then))

    def sweep(self) -> None:
        """Let go of what is done."""
        done = []  # dropped outside the lock: destructors may come back here
        with self._lock:
            while self._held and self._held[0][0].query():
                done.append(self._held.popleft())
        for _, _, then in done:
            if then is not None:
                then()


IN_FLIGHT = InFlight()
"""The process's: a device's queues are, too."""
