"""K/V events as an engine sends them, from a test's hand or an engine's, with losses on demand.

Frames, numbers and replay are vLLM's (SGLang's are the same). Stands in front of a real engine
to lose batches on the way, to forget them, or to speak the older encoding.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq

_STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx"),
)
_REMOVED = ("block_hashes", "medium", "group_idx")


def as_arrays(payload: bytes) -> bytes:
    """A batch as earlier releases encoded it: every event an array, its type first."""
    stamp, events, *rest = msgpack.unpackb(payload, strict_map_key=False)
    fields = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}
    arrays = [[e["type"], *(e.get(name) for name in fields[e["type"]])] for e in events]
    return msgpack.packb([stamp, arrays, *rest])


class Relay:
    """A publisher with a buffer it can lose."""

    def __init__(self, folder: Path, *, topic_in_replay: bool = True) -> None:
        self.endpoint, self.replay = f"ipc://{folder}/relayed", f"ipc://{folder}/relayed-replay"
        self.buffer: list[tuple[int, bytes]] = []
        self.losing = False
        """Lose what comes now on its way; the buffer keeps it."""
        self.silent = False
        """Answer nobody who asks for what was."""
        self.encode: Any = lambda payload: payload
        self._topic_in_replay = topic_in_replay
        self._outbox: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._stop = threading.Event()
        self._context = zmq.Context()
        self._carrier: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, *events: Any, lost: bool = False) -> None:
        """One batch of a test's own."""
        number = self.buffer[-1][0] + 1 if self.buffer else 0
        payload = msgpack.packb([time.time(), list(events), 0])
        self.buffer.append((number, payload))
        if not lost:
            self._outbox.put((number, payload))

    def restart(self) -> None:
        """As an engine that starts again: counts from 0, remembers nothing."""
        self.buffer = []

    def carry(self, endpoint: str, replay: str) -> None:
        """Pass on what an engine publishes there, from its first batch on."""
        self._carrier = threading.Thread(target=self._carry, args=(endpoint, replay), daemon=True)
        self._carrier.start()

    def _carry(self, endpoint: str, replay: str) -> None:
        source = self._context.socket(zmq.SUB)
        source.setsockopt(zmq.SUBSCRIBE, b"")
        source.connect(endpoint)
        passed = -1
        while not self._stop.is_set():
            if source.poll(20):
                _, sent, payload = source.recv_multipart()
                number = int.from_bytes(sent, "big")
                batches = [(number, payload)]
                if number > passed + 1:  # Sent before we had subscribed.
                    batches = self._fetched(replay, passed + 1, number) + batches
                passed = number
                for each, body in batches:
                    self.buffer.append((each, self.encode(body)))
                    if not self.losing:
                        self._outbox.put(self.buffer[-1])
        source.close(linger=0)

    def _fetched(self, replay: str, start: int, end: int) -> list[tuple[int, bytes]]:
        asking = self._context.socket(zmq.DEALER)
        asking.connect(replay)
        asking.send_multipart([b"", start.to_bytes(8, "big")])
        got = []
        while asking.poll(10_000):
            *_, sent, payload = asking.recv_multipart()
            number = int.from_bytes(sent, "big", signed=True)
            if number == -1:
                break
            if number < end:
                got.append((number, payload))
        asking.close(linger=0)
        return got

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._carrier is not None:
            self._carrier.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        publisher = self._context.socket(zmq.PUB)
        publisher.bind(self.endpoint)
        router = self._context.socket(zmq.ROUTER)
        router.bind(self.replay)
        while not self._stop.is_set():
            while router.poll(0):
                request = router.recv_multipart()
                if not self.silent:
                    self._serve(router, *request)
            try:
                number, payload = self._outbox.get(timeout=0.01)
            except queue.Empty:
                continue
            publisher.send_multipart((b"", number.to_bytes(8, "big"), payload))
        publisher.close(linger=0)
        router.close(linger=0)

    def _serve(self, router: Any, client: bytes, _: bytes, start: bytes) -> None:
        head = (client, b"", b"") if self._topic_in_replay else (client, b"")
        for number, payload in list(self.buffer):
            if number >= int.from_bytes(start, "big"):
                router.send_multipart((*head, number.to_bytes(8, "big"), payload))
        router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))
