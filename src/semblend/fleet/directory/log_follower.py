"""Keeps a directory up to date with the log, whatever happens to the connection.

It reads with a pull consumer from the first message not yet applied, so a slow replica is
late but never wrong. It makes a new consumer after every failure, and whenever the client
lost a message. The position is ours, not the server's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from semblend.core.errors import SerialisationError, StorageError
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.events.codec import decode, decode_heartbeat
from semblend.fleet.events.event_values import Event
from semblend.fleet.publish.nats_link import LogOptions, NatsLink

logger = logging.getLogger("semblend.fleet")

_BATCH = 512


class LogFollower:
    """Applies the fleet's log to one directory, on its own thread, until closed."""

    def __init__(
        self,
        directory: Directory,
        options: LogOptions,
        *,
        apply: Callable[[list[Event]], object] | None = None,
        position: int = 0,
        idle_s: float = 1.0,
        retry_s: float = 0.2,
    ) -> None:
        self._directory = directory
        # An optional stage between the log and the directory.
        self._take = apply or directory.apply
        self._options = options
        self._idle_s = idle_s
        self._retry_s = retry_s
        self.position = position
        """Sequence number of the last message applied."""
        self.malformed = 0
        self.reconnections = -1
        self._delivered = 0
        """Number of the last message received, as this consumer counts."""
        self._unseen = 0
        """Number of the last message the server had delivered at the previous silence."""
        self._caught_up = False
        self._hears = False
        self._link = NatsLink(options)
        self._doubted: set[RankName] = set()
        directory.on_doubt(self._doubt)
        self._task: Future[None] = asyncio.run_coroutine_threadsafe(self._run(), self._link.loop)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was in the log at the last check has been applied."""
        return self._caught_up

    def close(self) -> None:
        self._task.cancel()
        self._link.close()

    def _doubt(self, name: RankName) -> None:
        self._doubted.add(name)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Whatever the client raises: retry from the current position.
                logger.debug("following the log: %s", error)
            self._caught_up = self._hears = False
            self._directory.expire()
            await asyncio.sleep(self._retry_s)

    async def _follow(self) -> None:
        from nats.errors import TimeoutError as NatsTimeoutError

        subscription = await self._subscribe()
        self._delivered = self._unseen = 0
        self.reconnections += 1
        connection = await self._link.connection()
        beats = await connection.subscribe(self._options.heartbeats(), cb=self._on_beat)
        try:
            while True:
                try:
                    messages = await subscription.fetch(_BATCH, timeout=self._idle_s)
                except NatsTimeoutError:
                    # Silence means something only if the server is reachable.
                    self._check_silence(await subscription.consumer_info())
                    self._caught_up = self._hears = True
                else:
                    self._apply(messages)
                await self._ask()
                self._directory.expire()
        finally:
            if not connection.is_closed:
                await beats.unsubscribe()

    async def _subscribe(self) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        jetstream = await self._link.jetstream()
        info = await jetstream.stream_info(self._options.stream)
        if info.state.last_seq < self.position:
            # A different log under the same name: the ranks' own ids show what is still valid.
            self.position = 0
        return await jetstream.pull_subscribe(
            f"{self._options.subject}.>",
            stream=self._options.stream,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.position + 1,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=60.0,
            ),
        )

    def _check_silence(self, info: Any) -> None:
        """Check that everything the server delivered has arrived.

        A fetch that ends just as a message arrives can lose it in the client, and nothing is
        delivered twice. What is still missing after a second silence is lost.
        """
        sent = info.delivered.consumer_seq
        if sent > self._delivered and sent == self._unseen:
            raise StorageError(f"{sent - self._delivered} messages were delivered but lost")
        self._unseen = sent

    def _apply(self, messages: list[Any]) -> None:
        events: list[Event] = []
        lost = False
        for message in messages:
            number = message.metadata.sequence.consumer
            lost = number != self._delivered + 1
            if lost:
                break
            self._delivered = number
            sequence = message.metadata.sequence.stream
            if sequence <= self.position:
                continue
            self.position = sequence
            try:
                events.append(decode(message.data))
            except SerialisationError as error:
                # Its id is missing now, so the rank's next event makes it resend everything.
                self.malformed += 1
                logger.warning("cannot decode an event: %s", error)
        self._take(events)
        if lost:
            raise StorageError("a message was delivered but lost; reading again from before it")
        self._caught_up = messages[-1].metadata.num_pending == 0
        self._hears = self._hears or self._caught_up

    async def _on_beat(self, message: Any) -> None:
        if not self._hears:
            return  # Still replaying: every heartbeat would only show that we lag behind.
        try:
            self._directory.hear(decode_heartbeat(message.data))
        except SerialisationError as error:
            self.malformed += 1
            logger.warning("cannot decode a heartbeat: %s", error)

    async def _ask(self) -> None:
        doubted, self._doubted = self._doubted, set()
        if doubted:
            connection = await self._link.connection()
            for worker_id, dp_rank in doubted:
                await connection.publish(self._options.resyncs(worker_id, dp_rank), b"")
