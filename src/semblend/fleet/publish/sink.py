"""Where a publisher's events go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from semblend.fleet.events.event_values import Event, Heartbeat


class EventSink(Protocol):
    """A log that events can be added to. Called only from the publisher's own thread.

    Every method may raise; the publisher retries later.
    """

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        """(generation, event id) of the rank's last event in the log, (0, 0) if it has none."""
        ...

    def send(self, events: Sequence[Event]) -> None:
        """Add events in order; return once the log holds them."""
        ...

    def beat(self, heartbeat: Heartbeat) -> None:
        """Publish that the rank is alive; this is not stored."""
        ...

    def compact(self, reset: Event) -> None:
        """Drop the rank's events before `reset`, which it invalidates."""
        ...

    def asked_to_resync(self) -> bool:
        """Whether a directory has asked this rank to resend everything since the last call."""
        ...

    def close(self) -> None: ...
