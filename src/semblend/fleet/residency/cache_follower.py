"""Subscribes to an engine's K/V events over ZeroMQ and fetches what it missed.

The engine numbers its batches. A missing number is requested from the engine's replay
socket; if the engine no longer has it, nothing is certain and the rank's blocks are dropped.
During silence the replay socket is asked now and then whether that is all: only this
reveals that the last batch was lost or that the engine restarted.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import MissingExtraError
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.residency.decoding import CacheBatch, decode_batch

logger = logging.getLogger("semblend.fleet")

_END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFeed:
    """Where one rank's cache events come from."""

    worker_id: str
    endpoint: str
    """For example tcp://worker:5557; with `bind`, the address the engine connects to."""
    dp_rank: int = 0
    replay_endpoint: str = ""
    topic: str = ""
    bind: bool = False
    replay_timeout_s: float = 5.0
    check_s: float = 1.0
    """Seconds of silence before the replay socket is asked."""

    @property
    def name(self) -> RankName:
        return self.worker_id, self.dp_rank


class CacheFollower:
    """Passes on every batch of one feed, in order and without gaps, until closed.

    Parameters
    ----------
    apply
        Receives a batch.
    started
        Called before the engine's very first batch: its cache was empty.
    missed
        Called when batches are lost for good; what came before no longer counts.
    """

    def __init__(
        self,
        feed: CacheFeed,
        *,
        apply: Callable[[RankName, CacheBatch], object],
        missed: Callable[[RankName], object],
        started: Callable[[RankName], object] = lambda _: None,
    ) -> None:
        try:
            zmq = importlib.import_module("zmq")
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                package="pyzmq", extra="fleet", purpose="following an engine's K/V events"
            ) from error
        self._zmq = zmq
        self.feed = feed
        self._apply = apply
        self._missed = missed
        self._started = started
        self.position = -1
        """Number of the last batch passed on."""
        self.replayed = 0
        self.gaps = 0
        self.unanswered = 0
        """Times the replay socket did not answer."""
        self._last: tuple[float, bytes] = (0.0, b"")
        """Time and payload of the last batch."""
        self._asked_at = float("-inf")
        self._answered = False
        self._stop = threading.Event()
        self._context: Any = zmq.Context()
        self._socket: Any = self._context.socket(zmq.SUB)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, feed.topic)
        self._socket.set_hwm(100_000)
        (self._socket.bind if feed.bind else self._socket.connect)(feed.endpoint)
        self._thread = threading.Thread(
            target=self._run, name=f"semblend-blocks-{feed.worker_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._socket.poll(100):
                    frames = self._socket.recv_multipart()
                    self._take(int.from_bytes(frames[-2], "big"), frames[-1])
                elif time.monotonic() - self._asked_at > self.feed.check_s:
                    self._check()
            except Exception as error:
                # Not a batch, or a socket error: its content is unknown.
                logger.warning("following K/V events of %s: %s", self.feed.worker_id, error)
                self._lose()

    def _take(self, number: int, payload: bytes) -> None:
        if number <= self.position:
            # Already replayed, unless it is newer than all we have. Then the engine restarted and
            # counts from 0.
            if decode_batch(payload).time <= self._last[0]:
                return
            self._lose(forget_position=True)
        if number > self.position + 1:
            self._replay(self.position + 1, before=number)
        self._hand_on(number, payload)

    def _check(self) -> None:
        """Request the last batch we have, to see whether it is still the engine's last."""
        self._asked_at = time.monotonic()
        if self.position >= 0:
            batches = self._ask(self.position)
            first = next(batches, None)
            if first == (self.position, self._last[1]):
                for number, payload in batches:
                    self.replayed += 1
                    self._hand_on(number, payload)
                return
            if first is None and not self._answered:
                return
            for _ in batches:
                pass  # Drain the socket, so that the next request starts clean.
            self._lose(forget_position=True)
        self._replay(0)

    def _replay(self, start: int, *, before: int | None = None) -> None:
        """Pass on what the engine kept of batches [start, before)."""
        for number, payload in self._ask(start):
            if number > self.position and (before is None or number < before):
                self.replayed += 1
                self._hand_on(number, payload)

    def _hand_on(self, number: int, payload: bytes) -> None:
        if number > self.position + 1:
            self._lose()
        # Even if it cannot be read: it would not be readable next time either.
        self.position, self._last = number, (self._last[0], payload)
        batch = decode_batch(payload)
        self._last = (batch.time, payload)
        if number == 0:
            self._started(self.feed.name)
        self._apply(self.feed.name, batch)

    def _lose(self, *, forget_position: bool = False) -> None:
        if forget_position:
            self.position, self._last = -1, (0.0, b"")
        self.gaps += 1
        self._missed(self.feed.name)

    def _ask(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Batches from `start` on, as far as the engine has kept them."""
        self._answered = False
        if not self.feed.replay_endpoint:
            return
        socket = self._context.socket(self._zmq.DEALER)
        try:
            socket.connect(self.feed.replay_endpoint)
            socket.send_multipart([b"", start.to_bytes(8, "big")])
            while self._has_come(socket):
                # With or without a topic, number and payload come last.
                frames = socket.recv_multipart()
                self._answered = True
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number == _END:
                    return
                yield number, frames[-1]
            self.unanswered += 1
        finally:
            socket.close(linger=0)

    def _has_come(self, socket: Any) -> bool:
        """Wait for an answer until the timeout or until closed."""
        deadline = time.monotonic() + self.feed.replay_timeout_s
        while not socket.poll(100):
            if self._stop.is_set() or time.monotonic() > deadline:
                return False
        return True
