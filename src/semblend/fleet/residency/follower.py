"""Subscribes to an engine's K/V events over ZeroMQ and fetches what it missed.

Batches are numbered by the engine. A number that is missing is asked for at the
engine's replay socket; if it has forgotten them, nothing is certain and the rank's
blocks are dropped. A subscriber that starts late starts with nothing.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import MissingExtraError, SerialisationError
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
    replay_timeout_s: float = 2.0

    @property
    def name(self) -> RankName:
        """The rank."""
        return self.worker_id, self.dp_rank


class CacheFollower:
    """Hands every batch of one feed on, in order and without gaps, until closed.

    Parameters
    ----------
    apply
        Takes a batch.
    missed
        Told when batches are lost for good; what came before no longer counts.
    """

    def __init__(
        self,
        feed: CacheFeed,
        *,
        apply: Callable[[RankName, CacheBatch], object],
        missed: Callable[[RankName], object],
    ) -> None:
        try:
            zmq = importlib.import_module("zmq")
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                package="pyzmq", extra="fleet", purpose="following an engine's K/V events"
            ) from error
        self._zmq = zmq
        self._feed = feed
        self._apply = apply
        self._missed = missed
        self.position = -1
        """Number of the last batch handed on."""
        self.replayed = 0
        self.gaps = 0
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
        """Stop following."""
        self._stop.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._socket.poll(100):
                    continue
                frames = self._socket.recv_multipart()
                self._take(int.from_bytes(frames[-2], "big"), frames[-1])
            except SerialisationError as error:
                logger.warning("K/V events of %s: %s", self._feed.worker_id, error)
                self._lose()
            except Exception as error:
                logger.warning("following K/V events of %s: %s", self._feed.worker_id, error)
                self._lose()

    def _take(self, number: int, payload: bytes) -> None:
        if number <= self.position:
            if number > 0:
                return  # Replayed already.
            # An engine that counts from 0 again has started again.
            self._lose()
            self.position = -1
        if number > self.position + 1 and not self._replay(self.position + 1, number):
            self._lose()
        self._hand_on(number, payload)

    def _hand_on(self, number: int, payload: bytes) -> None:
        batch = decode_batch(payload)
        self.position = number
        self._apply(self._feed.name, batch)

    def _lose(self) -> None:
        self.gaps += 1
        self._missed(self._feed.name)

    def _replay(self, start: int, end: int) -> bool:
        """Ask for batches [start, end); whether all of them came."""
        if not self._feed.replay_endpoint:
            return False
        socket = self._context.socket(self._zmq.DEALER)
        try:
            socket.connect(self._feed.replay_endpoint)
            socket.send_multipart([b"", start.to_bytes(8, "big")])
            while socket.poll(int(self._feed.replay_timeout_s * 1000)):
                # With a topic or without one: number and payload are the last two.
                frames = socket.recv_multipart()
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number == _END:
                    break
                if self.position < number < end:
                    if number != self.position + 1:
                        return False
                    self._hand_on(number, frames[-1])
                    self.replayed += 1
            return self.position == end - 1
        finally:
            socket.close(linger=0)
