"""Donors: tokens with exact K/V, stored off the request path.

A finished prefill or answer is offered with a reference to its pages. A separate thread copies them
out, stores them as content-addressed segments and only then registers the tokens, so every donor
that can be found can be loaded. If nothing may be loaded (discovery only, no certificate), tokens
are registered without K/V. Whatever one side evicts (segments or index entries) is removed from the
other.

Copies go to memory that was touched before, either while idle or by an evicted segment.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from semblend.core.errors import CapacityError, CorruptSegmentError, DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.cache.exact_kv import ExactKv
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.streams import SideStream
from semblend.kv.donor_pieces import DonorKv, DonorPiece
from semblend.kv.layerwise import Check
from semblend.kv.segments import Segment, SegmentKey
from semblend.kv.tiers.stack import TierStack
from semblend.pipeline import SemBlendPipeline

logger = logging.getLogger("semblend.engine")

SEGMENT_TOKENS = 512
"""Prompts with the same beginning share whole segments of this size."""

AHEAD_BYTES = 1 << 30
"""Most memory to touch before a prompt needs it, whatever the tier's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capture:
    """Tokens to store. Its creator holds a reference to the table's pages."""

    donor_id: str
    tokens: TokenArray
    namespace: Namespace
    share_key: bytes
    table: PageTable
    mark: torch.cuda.Event | None
    """The passes that computed it; None on a CPU, where they have finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Donor:
    tokens: TokenArray
    namespace: Namespace
    keys: tuple[SegmentKey, ...]


class DonorListener(Protocol):
    """Follows which donors are held. Called under the library's lock, so it must return at once
    and must not call back.
    """

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: Namespace) -> None:
        """The donor can be found and loaded from now on."""
        ...

    def donor_lost(self, donor_id: str) -> None:
        """A donor that was kept is gone."""
        ...


class DonorLibrary:
    """A donor is registered exactly while all its segments are held.

    Thread-safe. Calls into the pipeline and the tiers are made without the lock, because both call
    back.
    """

    def __init__(
        self,
        *,
        pool: PagedPool,
        pipeline: SemBlendPipeline,
        tiers: TierStack,
        queued: int,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread. It calls `stored` after each prompt, kept or not."""
        self._stored = stored
        self._pool = pool
        self._side = SideStream(pool.data.device)
        self._pipeline = pipeline
        self._tiers = tiers
        self._donors: dict[str, _Donor] = {}
        self._users: dict[bytes, set[str]] = {}
        self._announced: set[str] = set()
        self._listeners: list[DonorListener] = []
        self._serials = itertools.count(1)
        self._lock = threading.Lock()
        self._queue: queue.Queue[_Capture | None] = queue.Queue(maxsize=queued)
        self.skipped = 0
        """Prompts not stored because the queue was full."""
        self.busy_seconds = 0.0
        """Processor time spent on storing prompts so far, in parallel with requests."""
        pipeline.add_eviction_listener(self._forget)
        tiers.add_eviction_listener(self._segment_gone)
        self._thread = threading.Thread(target=self._run, name="semblend-donors", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._donors)

    @property
    def waiting(self) -> int:
        """Prompts waiting to be stored."""
        return self._queue.qsize()

    # -- giving ------------------------------------------------------------------

    def offer(self, exact: ExactKv) -> None:
        """Store tokens whose K/V was computed exactly. Never blocks, never raises."""
        capture = _Capture(
            donor_id=f"{exact.name}.{next(self._serials)}",
            tokens=exact.tokens,
            namespace=exact.namespace,
            share_key=exact.share_key,
            table=PageTable(
                pages=exact.table.pages[: self._pool.pages_for(len(exact.tokens))],
                page_size=exact.table.page_size,
            ),
            mark=self._side.mark(),
        )
        self._pool.allocator.retain(capture.table.pages)
        try:
            self._queue.put_nowait(capture)
        except queue.Full:
            self.skipped += 1
            self._pool.allocator.release(capture.table.pages)

    def adopt(
        self,
        donor_id: str,
        tokens: TokenArray,
        namespace: Namespace,
        read: Callable[[SegmentKey], Segment],
    ) -> bool:
        """Store a donor computed by another worker. `read` fetches its segments, verified.

        Blocks while it reads. Returns whether the donor is held.

        Raises
        ------
        SemBlendError
            If a segment is not available.
        """
        if not self._pipeline.may_load:
            return False
        keys = _segment_keys(self._pipeline.share_key(namespace), tokens)
        # Read before making room, so that no room is held while waiting for another worker.
        self._hold(donor_id, tokens, namespace, keys, lambda key: self._tiers.put(read(key)))
        return self._register(donor_id, tokens, namespace, keys)

    def prepare(self, *, longest: int) -> bool:
        """Touch a slice of memory for future prompts, index first. False if there is enough.

        Enough means room for as many prompts of `longest` tokens as may wait to be stored. Call it
        when nothing else needs the processor.
        """
        if not self._pipeline.settings.enabled:
            return False
        if self._pipeline.prepare():
            return True
        prompts = self._queue.maxsize * longest * self._pool.shape.token_bytes
        return self._pipeline.may_load and self._tiers.prepare(min(AHEAD_BYTES, prompts))

    def wait(self) -> None:
        """Wait until everything offered so far is stored. For tests, demos and benchmarks."""
        self._queue.join()

    # -- taking ------------------------------------------------------------------

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[DonorKv]:
        """K/V that covers donor positions [start, end), protected from eviction.

        Raises
        ------
        DonorError, CorruptSegmentError
            If the donor is gone, or one of its segments just failed its checksum.
        """
        return self._lease(donor_id, start, end, unchecked=False)

    def lease_unchecked(
        self, donor_id: str, start: int, end: int
    ) -> AbstractContextManager[DonorKv]:
        """Like `lease`, but without waiting. Corrupt segments are dropped by its `checks`."""
        return self._lease(donor_id, start, end, unchecked=True)

    @contextmanager
    def _lease(self, donor_id: str, start: int, end: int, *, unchecked: bool) -> Iterator[DonorKv]:
        donor = self._donors.get(donor_id)
        if donor is None:
            # The donor may have been lost before the index knew it. Evict it, or it is offered
            # forever.
            self._pipeline.evict(donor_id)
            raise DonorError(f"donor {donor_id!r} is gone")
        if not donor.keys:
            raise DonorError(
                f"donor {donor_id!r}: its K/V was not stored, because reuse was not allowed"
            )
        reach(FaultPoint.LEASE)
        pieces: list[DonorPiece] = []
        checks: list[Check] = []
        corrupt = self._corrupt_segments()
        with ExitStack() as leases:
            for key in donor.keys:
                if key.start + key.length <= start or key.start >= end:
                    continue
                lease = self._tiers.acquire(key, unchecked=unchecked)
                if lease is None:
                    self._drop(donor_id)
                    if self._corrupt_segments() > corrupt:
                        raise CorruptSegmentError(f"donor {donor_id!r}: K/V fails its checksum")
                    raise DonorError(f"donor {donor_id!r} has lost its K/V")
                leases.enter_context(lease)
                pieces.append(DonorPiece(start=key.start, kv=lease.segment.kv))
                if unchecked:
                    checks.append(partial(self._tiers.is_sound, lease))
            yield DonorKv(tokens=donor.tokens, pieces=tuple(pieces), checks=tuple(checks))

    # -- following -----------------------------------------------------------------

    def add_listener(self, listener: DonorListener) -> None:
        """Notify a listener of every donor kept or lost from now on."""
        with self._lock:
            self._listeners.append(listener)

    def inventory(self) -> list[tuple[str, TokenArray, Namespace]]:
        """Every donor that can be found and loaded now: (id, tokens, namespace)."""
        with self._lock:
            return [
                (donor_id, donor.tokens, donor.namespace)
                for donor_id, donor in self._donors.items()
                if donor_id in self._announced
            ]

    # -- housekeeping --------------------------------------------------------------

    def clear(self) -> int:
        """Drop all donors and return how many there were."""
        self.wait()
        with self._lock:
            ids = list(self._donors)
        for donor_id in ids:
            self._drop(donor_id)
        return len(ids)

    def close(self) -> None:
        """Stop the thread after it has stored what was offered."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _corrupt_segments(self) -> int:
        """Segments that failed their checksum so far. Tells corrupt donors from lost ones."""
        return sum(tier.corrupt for tier in self._tiers.stats())

    def _run(self) -> None:
        while (capture := self._queue.get()) is not None:
            started = time.thread_time()
            try:
                self._store(capture)
            except BaseException:
                # Losing a donor harms no request. Losing the thread would pin the pages of
                # everything queued.
                logger.warning("donor %s was not stored", capture.donor_id, exc_info=True)
            finally:
                self.busy_seconds += time.thread_time() - started
                self._queue.task_done()
                self._stored()
        self._queue.task_done()

    def _store(self, capture: _Capture) -> None:
        keys: tuple[SegmentKey, ...] = ()
        if self._pipeline.may_load:
            keys = _segment_keys(capture.share_key, capture.tokens)

        def read(key: SegmentKey) -> Segment:
            reach(FaultPoint.CAPTURE)
            data = self._pool.data
            out = self._tiers.empty(self._pool.read_shape(key.length), data.dtype, data.device)
            self._pool.read(capture.table, key.start, key.start + key.length, out=out)
            return Segment(key=key, kv=out)

        def store(key: SegmentKey) -> str | None:
            # Copy only once there is room, so that the evicted segment's memory is reused.
            nbytes = key.length * self._pool.shape.token_bytes
            return self._tiers.put_from(key, nbytes, lambda: read(key))

        try:
            reach(FaultPoint.KILLED_WORKER)
            with self._side.after(capture.mark):
                self._hold(capture.donor_id, capture.tokens, capture.namespace, keys, store)
        finally:
            self._pool.allocator.release(capture.table.pages)
        self._register(capture.donor_id, capture.tokens, capture.namespace, keys)

    def _hold(
        self,
        donor_id: str,
        tokens: TokenArray,
        namespace: Namespace,
        keys: tuple[SegmentKey, ...],
        store: Callable[[SegmentKey], str | None],
    ) -> None:
        """Store those of a donor's segments that the tiers do not hold yet."""
        try:
            with self._lock:
                self._donors[donor_id] = _Donor(tokens=tokens, namespace=namespace, keys=keys)
                for key in keys:
                    self._users.setdefault(key.digest, set()).add(donor_id)
            for key in keys:
                if key not in self._tiers and store(key) is None:
                    raise CapacityError("no tier has room")
        except BaseException:
            self._forget(donor_id)
            raise

    def _register(
        self,
        donor_id: str,
        tokens: TokenArray,
        namespace: Namespace,
        keys: tuple[SegmentKey, ...],
    ) -> bool:
        """Make a donor findable. It is dropped again if it is incomplete."""
        held = donor_id in self._donors and self._pipeline.register_donor(
            donor_id, tokens, namespace
        )
        if not held or any(key not in self._tiers for key in keys):
            self._drop(donor_id)
            return False
        with self._lock:
            # Under the lock, so that listeners never hear of a loss before the donor.
            kept = donor_id in self._donors
            if kept and keys:  # announce only what can be loaded
                self._announced.add(donor_id)
                for listener in self._listeners:
                    listener.donor_kept(donor_id, tokens, namespace)
        if not kept:
            # Dropped before the index knew it, while another donor keeps its segments.
            self._pipeline.evict(donor_id)
        return kept

    def _segment_gone(self, key: SegmentKey) -> None:
        """Drop the donors of an evicted segment, which are now incomplete."""
        with self._lock:
            users = tuple(self._users.get(key.digest, ()))
        for donor_id in users:
            self._drop(donor_id)

    def _drop(self, donor_id: str) -> None:
        self._pipeline.evict(donor_id)
        self._forget(donor_id)

    def _forget(self, donor_id: str) -> None:
        """Release a donor's segments. Those no other donor uses leave the tiers."""
        with self._lock:
            donor = self._donors.pop(donor_id, None)
            if donor_id in self._announced:
                self._announced.discard(donor_id)
                for listener in self._listeners:
                    listener.donor_lost(donor_id)
            unused: list[SegmentKey] = []
            for key in donor.keys if donor is not None else ():
                users = self._users[key.digest]
                users.discard(donor_id)
                if not users:
                    del self._users[key.digest]
                    unused.append(key)
        for key in unused:
            self._tiers.remove(key)


def _segment_keys(share_key: bytes, tokens: TokenArray) -> tuple[SegmentKey, ...]:
    size = len(tokens)
    return SegmentKey.chain(share_key, tokens, [*range(0, size, SEGMENT_TOKENS), size])
