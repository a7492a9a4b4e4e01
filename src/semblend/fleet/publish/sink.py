"""Where a publisher's events go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from semblend.fleet.events.model import Event, Heartbeat


class EventSink(Protocol):
    """A log that events can be added to. Called from the publisher's own thread only.

    Every method may raise: the publisher tries again later.
    """

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        """(generation, event id) of the rank's last event in the log, (0, 0) if it has none."""
        ...

    def send(self, events: Sequence[Event]) -> None:
        """Add events in order; returns once the log holds them."""
        ...

    def beat(self, heartbeat: Heartbeat) -> None:
        """Say that the rank lives; nobody keeps it."""
        ...

    def compact(self, reset: Event) -> None:
        """Drop the rank's events before `reset`: nothing said before it holds."""
        ...

    def asked_to_resync(self) -> bool:
        """Whether some directory has asked this rank to start anew since the last call."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...
