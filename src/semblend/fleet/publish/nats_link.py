"""A connection to NATS on its own thread, with a blocking interface."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, TypeVar

import xxhash

from semblend.core.errors import MissingExtraError, SettingsError, StorageError

logger = logging.getLogger("semblend.fleet")

Result = TypeVar("Result")
_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Where the fleet's log is and how much of it is kept."""

    url: str
    """For example nats://nats:4222; several, separated by commas, are tried in turn."""
    subject: str = "semantic-kv-events"
    replicas: int = 1
    max_age_s: float = 7 * 86_400.0
    """Older events are dropped; a worker compacts its log long before that."""
    max_bytes: int = -1
    """Size limit of the log; -1: the server's. Workers keep it to a few times what they hold."""
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("nats://", "tls://", "ws://", "wss://")):
            raise SettingsError(
                f"SEMBLEND_NATS_URL {self.url!r}: expected an address such as nats://127.0.0.1:4222"
            )
        if not self.subject or re.search(r"[\s*>]", self.subject):
            raise SettingsError(
                f"SEMBLEND_NATS_SUBJECT {self.subject!r}: expected a subject without spaces or "
                "wildcards"
            )

    @property
    def stream(self) -> str:
        """JetStream's name for the log; stream names cannot have dots."""
        return _TOKEN.sub("_", self.subject)

    def of_rank(self, worker_id: str, dp_rank: int) -> str:
        """The subject of one rank's events."""
        return f"{self.subject}.{token(worker_id)}.{dp_rank}"

    def heartbeats(self, worker_id: str = "", dp_rank: int | str = "") -> str:
        """The subject of one rank's heartbeats, or of all."""
        if not worker_id:
            return f"{self.subject}-heartbeats.>"
        return f"{self.subject}-heartbeats.{token(worker_id)}.{dp_rank}"

    def resyncs(self, worker_id: str, dp_rank: int) -> str:
        """The subject on which a rank is asked to resend everything."""
        return f"{self.subject}-resyncs.{token(worker_id)}.{dp_rank}"


def token(worker_id: str) -> str:
    """A worker's name as one subject token. Names that differ stay different."""
    clean = _TOKEN.sub("_", worker_id)
    if clean == worker_id:
        return clean
    return f"{clean}-{xxhash.xxh3_64_hexdigest(worker_id.encode())[:8]}"


class NatsLink:
    """Owns one connection, its loop and its thread. Reconnects while it is open."""

    def __init__(self, options: LogOptions) -> None:
        try:
            import nats
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                package="nats-py", extra="fleet", purpose="publishing to JetStream"
            ) from error
        self._nats = nats
        self.options = options
        self.loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._stream_made = False
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="semblend-nats", daemon=True
        )
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the link's loop and wait for it.

        Raises
        ------
        StorageError
            If it takes too long.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s or self.options.timeout_s)
        except FutureTimeoutError:
            future.cancel()
            raise StorageError(f"no answer from {self.options.url} in time") from None

    async def connection(self) -> Any:
        """The connection, made if there is none."""
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._nats.connect(
                self.options.url.split(","),
                connect_timeout=2,
                reconnect_time_wait=0.2,
                max_reconnect_attempts=-1,
                # No buffering while disconnected: the publisher's queue is the only buffer.
                pending_size=0,
                error_cb=_quietly,
            )
        if not self._connection.is_connected:
            raise StorageError(f"not connected to {self.options.url}")
        return self._connection

    async def jetstream(self) -> Any:
        """JetStream, with the log's stream created if necessary."""
        stream = (await self.connection()).jetstream(timeout=self.options.timeout_s)
        if not self._stream_made:
            await self._make_stream(stream)
            self._stream_made = True
        return stream

    def stream_is_gone(self) -> None:
        """Create the stream again on the next use."""
        self._stream_made = False

    async def _make_stream(self, jetstream: Any) -> None:
        from nats.js.api import StreamConfig
        from nats.js.errors import NotFoundError

        options = self.options
        # Not the subject itself: what is said there is for whoever listens, and not kept.
        subjects = [f"{options.subject}.>"]
        try:
            info = await jetstream.stream_info(options.stream)
            if options.subject in (info.config.subjects or ()):  # made by an earlier version
                await jetstream.update_stream(info.config.evolve(subjects=subjects))
                await jetstream.purge_stream(options.stream, subject=options.subject)
        except NotFoundError:
            await jetstream.add_stream(
                StreamConfig(
                    name=options.stream,
                    subjects=subjects,
                    max_age=options.max_age_s,
                    max_bytes=options.max_bytes,
                    num_replicas=options.replicas,
                    duplicate_window=min(120.0, options.max_age_s),
                )
            )

    def close(self) -> None:
        """Close the connection and end the thread. Idempotent."""
        if self.loop.is_closed():
            return
        try:
            self.call(self._close(), 2.0)
        except Exception as error:
            logger.debug("closing the connection to NATS: %s", error)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _quietly(error: Exception) -> None:
    logger.debug("nats: %s", error)
