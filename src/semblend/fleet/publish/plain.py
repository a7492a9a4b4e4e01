"""Publishes events on one plain subject of core NATS; listeners get them, nobody stores them."""

from __future__ import annotations

from collections.abc import Sequence

from semblend.fleet.events.codec import encode
from semblend.fleet.events.event_values import Event, Heartbeat
from semblend.fleet.publish.nats_link import LogOptions, NatsLink


class PlainSink:
    """Sends a worker's events to listeners of the subject. Needs no JetStream and no secret."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._link = NatsLink(options)

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        """Nothing is stored, so every life is the first."""
        return 0, 0

    def send(self, events: Sequence[Event]) -> None:
        """Publish; return once the server has the events."""
        payloads = [encode(event) for event in events]
        self._link.call(self._send(payloads), self._options.timeout_s * 2)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Nothing: listeners of this subject do not know heartbeats."""

    def compact(self, reset: Event) -> None:
        """Nothing: there is no log."""

    def asked_to_resync(self) -> bool:
        """Never: nobody can ask."""
        return False

    def close(self) -> None:
        self._link.close()

    async def _send(self, payloads: list[bytes]) -> None:
        connection = await self._link.connection()
        for payload in payloads:
            await connection.publish(self._options.subject, payload)
        await connection.flush(timeout=2)
