"""Copies donors into the shared store, off the path of any request."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from semblend.core.errors import DonorError, SemBlendError
from semblend.core.faults import FaultPoint, reach
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.announcer import DonorAnnouncer, HeldDonor
from semblend.fleet.keys import FleetKeys, donor_key
from semblend.fleet.transport.payload import manifest_name, segment_name
from semblend.fleet.transport.shelf import SharedShelf
from semblend.kv.segments import Segment, SegmentKey

logger = logging.getLogger("semblend.fleet")

_TICK_S = 1.0
ADOPTED_PREFIX = "fleet."
"""Prefix of the ids of donors from a shared store; they are not sent back there."""


class LeasingLibrary(Protocol):
    """A library whose donors' K/V can be read."""

    def add_listener(self, listener: Any) -> None:
        """Register for `donor_kept` and `donor_lost`."""
        ...

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[Any]:
        """Pieces (`start`, `kv`) that cover donor positions [start, end)."""
        ...


class DonorExporter:
    """Shares every donor a library keeps, within the quota. Never blocks the library."""

    def __init__(
        self,
        library: LeasingLibrary,
        shelf: SharedShelf,
        announcer: DonorAnnouncer,
        *,
        worker_id: str,
        dp_rank: int = 0,
        secret: bytes,
        queued: int = 64,
    ) -> None:
        self._library = library
        self._shelf = shelf
        self._announcer = announcer
        self._rank = (worker_id, dp_rank)
        self._secret = secret
        self._queue: queue.Queue[HeldDonor | None] = queue.Queue(maxsize=queued)
        self._local: set[str] = set()
        self.exported = 0
        self.skipped = 0
        """Donors not shared because the queue was full or they did not fit."""
        library.add_listener(self)
        self._thread = threading.Thread(target=self._run, name="semblend-share", daemon=True)
        self._thread.start()

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: Namespace) -> None:
        """Share a donor soon; if the queue is full it is not shared."""
        self._local.add(donor_id)
        if donor_id.startswith(ADOPTED_PREFIX):
            return
        try:
            self._queue.put_nowait((donor_id, tokens, namespace))
        except queue.Full:
            self.skipped += 1

    def donor_lost(self, donor_id: str) -> None:
        """Nothing: the shared copy outlives the local one."""
        self._local.discard(donor_id)

    def withdrawn(self, donor_id: str) -> None:
        """The shelf dropped a donor."""
        self._announcer.withdrawn(donor_id, local=donor_id in self._local)

    def wait(self) -> None:
        """Wait until everything kept so far is shared. For tests and demos."""
        self._queue.join()

    def close(self) -> None:
        """Stop sharing and withdraw everything."""
        self._queue.put(None)
        self._thread.join()
        self._shelf.close()

    def _run(self) -> None:
        while True:
            try:
                held = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                self._shelf.expire()
                continue
            try:
                if held is None:
                    return
                self._export(held)
            except BaseException as error:
                # An unshared donor harms no request, so continue with the next one.
                self.skipped += 1
                logger.warning("a donor was not shared: %s", error)
            finally:
                self._queue.task_done()

    def _export(self, held: HeldDonor) -> None:
        reach(FaultPoint.KILLED_WORKER)
        donor_id, tokens, namespace = held
        if not isinstance(namespace, Namespace):
            raise DonorError(f"donor {donor_id!r}: its namespace is incomplete")
        keys = FleetKeys.of(namespace, self._secret)
        manifest = manifest_name(donor_key(*self._rank, donor_id), keys)
        try:
            self._shelf.put(
                donor_id,
                manifest=manifest,
                tokens=tokens,
                segments=self._segments(donor_id, tokens, namespace, keys),
            )
        except SemBlendError as error:
            self.skipped += 1
            logger.debug("donor %s was not shared: %s", donor_id, error)
            return
        self.exported += 1
        self._announcer.shared(held, backend=self._shelf.store.backend, locator=manifest)

    def _segments(
        self, donor_id: str, tokens: TokenArray, namespace: Namespace, keys: FleetKeys
    ) -> Iterator[tuple[str, Segment]]:
        with self._library.lease(donor_id, 0, len(tokens)) as donor:
            pieces = sorted(donor.pieces, key=lambda piece: int(piece.start))
            edges = [int(piece.start) for piece in pieces] + [len(tokens)]
            names = SegmentKey.chain(namespace.key(self._secret), tokens, edges)
            for key, piece in zip(names, pieces, strict=True):
                yield segment_name(key, keys), Segment(key=key, kv=piece.kv)
