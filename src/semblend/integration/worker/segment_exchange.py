"""A rank's part in moving donors: its segments into the shared store, others' out of it.

Every rank of a tensor-parallel engine holds its own heads, so every rank shares and fetches
its own segments, under names that only the same rank of an equal engine makes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator

from semblend.core.errors import CapacityError, CorruptSegmentError, StorageError
from semblend.fleet.keys import FleetKeys
from semblend.fleet.transport.payload import decode_segment, manifest_name, segment_name
from semblend.fleet.transport.shelf import SharedShelf
from semblend.fleet.transport.store import ObjectStore
from semblend.integration.scheduler.orders import CaptureCommand, FetchCommand, WorkerReport
from semblend.integration.worker.donors import WorkerDonors, segment_keys
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.segment_names import rank_keys
from semblend.kv.segments import Segment, SegmentKey

logger = logging.getLogger("semblend.adapter")

QUEUED = 64
"""Donors that may wait to be shared; any more are not shared."""
_TICK_S = 1.0
_IDLE_WAIT_S = 0.005
_LAST_WAIT_S = 30.0


class SegmentExchange:
    """Two threads: a fetch that a request waits for never queues after sharing."""

    def __init__(
        self,
        donors: WorkerDonors,
        access: KvAccess,
        store: ObjectStore,
        *,
        rank: int,
        ranks: int,
        max_bytes: int,
        ttl_s: float,
    ) -> None:
        self._donors = donors
        self._access = access
        self._store = store
        self._rank = (rank, ranks)
        self._shelf = SharedShelf(store, max_bytes=max_bytes, ttl_s=ttl_s, gone=self._gone)
        self._shares: queue.Queue[CaptureCommand | None] = queue.Queue(maxsize=QUEUED)
        self._fetches: queue.Queue[FetchCommand | None] = queue.Queue()
        self._changed = threading.Condition()
        self._report = WorkerReport()
        self._busy = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=target, name=f"semblend-{name}", daemon=True)
            for name, target in (("share", self._share_all), ("fetch", self._fetch_all))
        ]
        for thread in self._threads:
            thread.start()

    # -- the adapter's calls ---------------------------------------------------------

    def share(self, command: CaptureCommand) -> None:
        """Queue a stored prompt for sharing; skip it if the queue is full."""
        with self._changed:
            if not self._closed:
                try:
                    self._shares.put_nowait(command)
                    self._busy += 1
                    return
                except queue.Full:
                    pass
            self._report.withdrawn.add(command.donor_id)

    def fetch(self, command: FetchCommand) -> None:
        """Queue a donor for fetching."""
        with self._changed:
            self._busy += 1
        self._fetches.put(command)

    def wait_a_little(self) -> None:
        """Yield to the threads while the engine has nothing else to do."""
        with self._changed:
            if self._busy:
                self._changed.wait(timeout=_IDLE_WAIT_S)

    def take_report(self) -> WorkerReport:
        """What was shared and fetched since the last call."""
        with self._changed:
            report, self._report = self._report, WorkerReport()
        return report

    def clear(self) -> None:
        """Withdraw everything and stop sharing and fetching. Waits for work in progress."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.wait_for(lambda: not self._busy, timeout=_LAST_WAIT_S)
        self._shelf.close()

    def close(self) -> None:
        """Stop both threads and withdraw what was shared. Idempotent."""
        self.clear()
        if any(thread.is_alive() for thread in self._threads):
            self._shares.put(None)
            self._fetches.put(None)
        for thread in self._threads:
            thread.join()

    # -- sharing -----------------------------------------------------------------------

    def _share_all(self) -> None:
        while True:
            try:
                command = self._shares.get(timeout=_TICK_S)
            except queue.Empty:
                if not self._closed:
                    self._shelf.expire()
                continue
            if command is None:
                return
            shared = self._was_shared(command)
            with self._changed:
                if shared:
                    self._report.shared[command.donor_id] += 1
                else:
                    self._report.withdrawn.add(command.donor_id)
                self._busy -= 1
                self._changed.notify_all()

    def _was_shared(self, command: CaptureCommand) -> bool:
        try:
            self._share(command)
        except BaseException as error:
            # A donor that is not shared harms no request; continue with the next one.
            logger.warning("SemBlend did not share %s: %s", command.donor_id, error)
            return False
        return True

    def _share(self, command: CaptureCommand) -> None:
        if self._closed or command.shared_as is None:
            raise StorageError("nothing is shared any more")
        keys = rank_keys(command.share_key, *self._rank)
        self._shelf.put(
            command.donor_id,
            manifest=manifest_name(command.shared_as, keys),
            tokens=command.tokens,
            segments=self._segments(command, keys),
        )

    def _segments(self, command: CaptureCommand, keys: FleetKeys) -> Iterator[tuple[str, Segment]]:
        chain = segment_keys(command.share_key, command.tokens)
        with self._donors.lease(command.donor_id, 0, len(command.tokens)) as donor:
            for key, piece in zip(chain, donor.pieces, strict=True):
                yield segment_name(key, keys), Segment(key=key, kv=piece.kv)

    def _gone(self, donor_id: str) -> None:
        with self._changed:
            self._report.withdrawn.add(donor_id)

    # -- fetching ----------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while (command := self._fetches.get()) is not None:
            donor_id = command.donor_id
            started = time.perf_counter()
            try:
                brought = self._fetch(command)
                with self._changed:
                    self._report.captured[donor_id] += 1
                    self._report.capture_bytes[donor_id] = brought
                    self._report.capture_ms[donor_id] = (time.perf_counter() - started) * 1e3
            except BaseException as error:
                # Requests that wait for it are computed as if there were no fleet.
                logger.info("SemBlend did not fetch %s: %s", donor_id, error)
                self._donors.drop(donor_id)
                with self._changed:
                    self._report.rejected[donor_id] = f"{type(error).__name__}: {error}"
            finally:
                with self._changed:
                    self._report.answered[donor_id] += 1
                    self._busy -= 1
                    self._changed.notify_all()

    def _fetch(self, command: FetchCommand) -> int:
        """Store one donor from another machine; returns the bytes received."""
        if self._closed:
            raise StorageError("nothing is fetched any more")
        keys = rank_keys(command.share_key, *self._rank)
        chain = segment_keys(command.share_key, command.tokens)
        tiers, brought = self._donors.tiers, 0
        self._donors.claim(command.donor_id, command.tokens, chain)
        for key in chain:
            if key in tiers:
                continue
            segment = self._read(key, keys)
            brought += segment.kv.nbytes
            if tiers.put(segment) is None:
                raise CapacityError("no tier has room for it")
        if not self._donors.is_whole(command.donor_id):
            raise CapacityError("it was evicted while it was stored")
        return brought

    def _read(self, key: SegmentKey, keys: FleetKeys) -> Segment:
        stored = self._store.get(segment_name(key, keys))
        if stored is None:
            raise StorageError("a segment of the donor was withdrawn")
        segment = decode_segment(stored, key)
        access = self._access
        shape = (access.layer_count, access.parts, key.length, access.kv_heads, access.head_dim)
        if tuple(segment.kv.shape) != shape or segment.kv.dtype != access.dtype:
            raise CorruptSegmentError(
                f"shared segment {key.name[:16]}: K/V of shape {tuple(segment.kv.shape)}, "
                f"{shape} expected"
            )
        return segment
