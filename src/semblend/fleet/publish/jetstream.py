"""Publishes events to a JetStream stream: acknowledged, in order, one subject per rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.fleet.events.codec import decode, encode, encode_heartbeat
from semblend.fleet.events.event_values import Event, GenerationReset, Heartbeat
from semblend.fleet.publish.nats_link import LogOptions, NatsLink


class JetStreamSink:
    """One rank's sink on the log."""

    def __init__(self, options: LogOptions, *, worker_id: str, dp_rank: int = 0) -> None:
        self._options = options
        self._subject = options.of_rank(worker_id, dp_rank)
        self._resyncs = options.resyncs(worker_id, dp_rank)
        self._heartbeats = options.heartbeats(worker_id, dp_rank)
        self._link = NatsLink(options)
        self._subscription: Any = None
        self._asked = False

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        """Where the rank's previous life ended."""
        return self._link.call(self._last_position())

    def send(self, events: Sequence[Event]) -> None:
        """Publish and wait for every acknowledgement."""
        payloads = [(str(event.event_id), encode(event)) for event in events]
        self._link.call(self._send(payloads), self._options.timeout_s * 2)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Publish a heartbeat, which is not stored."""
        self._link.call(self._beat(encode_heartbeat(heartbeat)))

    def compact(self, reset: Event) -> None:
        """Purge the rank's subject up to its last reset."""
        self._link.call(self._compact(reset.event_id))

    def asked_to_resync(self) -> bool:
        """Whether a directory asked for everything again since the last call."""
        asked, self._asked = self._asked, False
        return asked

    def close(self) -> None:
        self._link.close()

    async def _last_position(self) -> tuple[int, int]:
        from nats.js.errors import NotFoundError

        jetstream = await self._link.jetstream()
        await self._listen()
        try:
            message = await jetstream.get_last_msg(self._options.stream, self._subject)
            event = decode(message.data or b"")
        except (NotFoundError, SerialisationError):
            return 0, 0
        return event.data.generation, event.event_id

    async def _send(self, payloads: list[tuple[str, bytes]]) -> None:
        from nats.js.errors import NoStreamResponseError

        jetstream = await self._link.jetstream()
        await self._listen()
        try:
            # JetStream keeps the order in which one connection publishes, and drops duplicates by
            # id, so a batch sent twice is in the log once.
            await asyncio.gather(
                *(
                    jetstream.publish(
                        self._subject,
                        payload,
                        headers={"Nats-Msg-Id": f"{self._subject}:{event_id}"},
                    )
                    for event_id, payload in payloads
                )
            )
        except NoStreamResponseError:
            self._link.stream_is_gone()
            raise

    async def _beat(self, payload: bytes) -> None:
        connection = await self._link.connection()
        await self._listen()
        await connection.publish(self._heartbeats, payload)
        await connection.flush(timeout=2)

    async def _compact(self, event_id: int) -> None:
        jetstream = await self._link.jetstream()
        message = await jetstream.get_last_msg(self._options.stream, self._subject)
        event = decode(message.data or b"")
        # Cut only a subject that ends with this very reset, so that nothing else is lost. Nothing
        # precedes the first message of a log, and a purge up to that one would purge everything.
        ends = isinstance(event.data, GenerationReset) and event.event_id == event_id
        if ends and (message.seq or 0) > 1:
            await jetstream.purge_stream(
                self._options.stream, subject=self._subject, seq=message.seq
            )

    async def _listen(self) -> None:
        """Receive resync requests; the client subscribes again after reconnecting."""
        if self._subscription is None:
            connection = await self._link.connection()
            self._subscription = await connection.subscribe(self._resyncs, cb=self._on_request)

    async def _on_request(self, message: Any) -> None:
        self._asked = True
