"""One machine, one process: events go straight to directories, in log order."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.events.event_values import Event, GenerationReset, Heartbeat


class InProcessBus:
    """Keeps each rank's events since its last reset, so that late directories get them too."""

    def __init__(self) -> None:
        self._logs: dict[RankName, list[Event]] = {}
        self._directories: list[Directory] = []
        self._wanted: set[RankName] = set()
        self._lock = threading.RLock()

    def attach(self, directory: Directory) -> None:
        """Send a directory everything valid now, and everything from now on."""
        with self._lock:
            for log in self._logs.values():
                directory.apply(log)
            directory.on_doubt(self.ask)
            self._directories.append(directory)

    def ask(self, name: RankName) -> None:
        """Ask a rank to resend everything."""
        with self._lock:
            self._wanted.add(name)

    def sink(self, worker_id: str, dp_rank: int = 0) -> BusSink:
        """The sink for one rank's publisher."""
        return BusSink(self, (worker_id, dp_rank))

    def add(self, events: Sequence[Event]) -> None:
        """Add events of one rank."""
        with self._lock:
            for event in events:
                name = (event.worker_id, event.dp_rank)
                if isinstance(event.data, GenerationReset):
                    self._logs[name] = []
                self._logs.setdefault(name, []).append(event)
            for directory in self._directories:
                directory.apply(events)

    def beat(self, heartbeat: Heartbeat) -> None:
        with self._lock:
            for directory in self._directories:
                directory.hear(heartbeat)

    def take_request(self, name: RankName) -> bool:
        """Whether the rank was asked to resend everything since the last call."""
        with self._lock:
            wanted = name in self._wanted
            self._wanted.discard(name)
            return wanted


class BusSink:
    """One rank's sink on the bus."""

    def __init__(self, bus: InProcessBus, name: RankName) -> None:
        self._bus = bus
        self._name = name

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        """A bus forgets everything with its process."""
        return 0, 0

    def send(self, events: Sequence[Event]) -> None:
        self._bus.add(events)

    def beat(self, heartbeat: Heartbeat) -> None:
        self._bus.beat(heartbeat)

    def compact(self, reset: Event) -> None:
        """Nothing: the bus drops what a reset invalidates."""

    def asked_to_resync(self) -> bool:
        """Whether a directory asked for everything again."""
        return self._bus.take_request(self._name)

    def close(self) -> None:
        """Nothing to close."""
