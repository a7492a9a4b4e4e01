"""Copies prompts' K/V out of the paged cache, off the request path.

K/V of a prompt does not change once its prefill is done, so the copy need not run
in the step: a thread makes it while the request decodes. All layers of many blocks are
gathered by one kernel, segment by segment as they are stored; each segment is one copy
into pinned memory, and its checksum is computed on another thread. The scheduler keeps the
blocks of a request that ends earlier until the copy is done, and a request that is
preempted waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.errors import CapacityError, DonorError
from semblend.core.faults import FaultPoint, fault_point, reach
from semblend.integration.scheduler.orders import CaptureCommand, WorkerReport
from semblend.integration.worker.donors import SEGMENT_TOKENS, WorkerDonors, segment_keys
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.segment_reads import SegmentReader
from semblend.kv.in_flight import IN_FLIGHT
from semblend.kv.segments import Segment, SegmentKey

logger = logging.getLogger("semblend.adapter")

_IDLE_WAIT_S = 0.005
"""A new request that arrives meanwhile waits no longer than this."""
_READ_BYTES = 128 << 20
"""K/V gathered on the device at once: what a capture takes in addition to the cache."""
_AHEAD_BYTES = 2 << 30
"""Memory that is kept pinned for future prompts."""
_STORERS = 4
"""Threads that copy and check segments: one computes checksums at five gigabytes per second."""
_WAIT_S = 30.0
"""Longest wait for a copy of blocks that are about to be overwritten; copies take far less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    command: CaptureCommand
    ready: Any
    """A CUDA event after which the K/V is written, or None on a CPU."""


class CaptureThread:
    """Stores prompts as donors, one after another, and remembers what to report."""

    def __init__(
        self,
        access: KvAccess,
        donors: WorkerDonors,
        *,
        on_stored: Callable[[CaptureCommand], None] | None = None,
    ) -> None:
        """`on_stored` is called on this thread with every stored prompt that is to be shared."""
        self._access = access
        self._reader = SegmentReader(access, SEGMENT_TOKENS)
        self._donors = donors
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._pending: Counter[str] = Counter()
        self._overwritten: set[str] = set()
        self._changed = threading.Condition()
        self._report = WorkerReport(layers=access.layer_count)
        self._stream: Any = None
        self._on_stored = on_stored
        self._storers = ThreadPoolExecutor(
            max_workers=_STORERS, thread_name_prefix="semblend-store", initializer=self._on_device
        )
        # Not on the thread: nothing may be pinned while an engine records its graphs.
        self._prepare()
        self._thread = threading.Thread(target=self._run, name="semblend-capture", daemon=True)
        self._thread.start()

    def submit(self, command: CaptureCommand) -> None:
        """Queue a prompt whose K/V this step's forward has written (or will, on its stream)."""
        ready = None
        if self._access.device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        with self._changed:
            self._pending[command.request_id] += 1
        self._queue.put(_Job(command=command, ready=ready))

    def is_pending(self, request_id: str) -> bool:
        """Whether a request's blocks are still needed."""
        with self._changed:
            return self._pending[request_id] > 0

    def wait_for(self, request_ids: list[str]) -> None:
        """Wait until these requests' blocks are no longer needed."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: not any(self._pending[request_id] for request_id in request_ids),
                timeout=_WAIT_S,
            )
            if not done:
                # What is copied from now on may belong to another request: it is not kept.
                self._overwritten.update(request_ids)
        if not done:
            logger.warning("SemBlend did not copy %s in %.0f s", request_ids, _WAIT_S)

    def wait_a_little(self, request_ids: set[str]) -> None:
        """Yield to the copy of these requests' blocks: there is nothing else to do."""
        with self._changed:
            self._changed.wait_for(
                lambda: not all(self._pending[request_id] for request_id in request_ids),
                timeout=_IDLE_WAIT_S,
            )

    def wait(self) -> None:
        """Wait until everything submitted so far is stored. For measurements and tests."""
        self._queue.join()

    def abandon(self) -> None:
        """Discard what waits; returns once no block is being read.

        Raises
        ------
        DonorError
            If a copy does not end. The K/V cache must then stay as it is.
        """
        with self._changed:
            self._overwritten.update(self._pending)
            if not self._changed.wait_for(lambda: not self._pending, timeout=_WAIT_S):
                raise DonorError(f"K/V of {sorted(self._pending)} is still being copied")

    def take_report(self) -> WorkerReport:
        """What was stored since the last call."""
        with self._changed:
            report, self._report = self._report, WorkerReport(layers=self._access.layer_count)
        return report

    def close(self) -> None:
        """Stop once everything submitted is stored. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            self._storers.shutdown()

    def _on_device(self) -> None:
        """A thread starts on device 0, whichever device its worker uses.

        Pinning or launching without naming a device would create a context there.
        """
        if self._access.device.type == "cuda":
            torch.cuda.set_device(self._access.device)

    def _run(self) -> None:
        self._on_device()
        while (job := self._queue.get()) is not None:
            command = job.command
            started = time.perf_counter()
            try:
                copied = self._store(job)
                with self._changed:
                    self._report.captured[command.donor_id] += 1
                    self._report.capture_bytes[command.donor_id] = copied
                    elapsed_ms = (time.perf_counter() - started) * 1e3
                    self._report.capture_ms[command.donor_id] = elapsed_ms
                if self._on_stored is not None and command.shared_as is not None:
                    self._on_stored(command)
            except BaseException as error:
                # Losing a donor harms no request; losing the thread would hold the
                # blocks of everything in the queue.
                logger.warning("SemBlend did not keep %s: %s", command.donor_id, error)
                self._donors.drop(command.donor_id)
                with self._changed:
                    self._report.rejected[command.donor_id] = f"{type(error).__name__}: {error}"
            finally:
                with self._changed:
                    self._report.answered[command.donor_id] += 1
                    self._pending[command.request_id] -= 1
                    if not self._pending[command.request_id]:
                        del self._pending[command.request_id]
                        self._overwritten.discard(command.request_id)
                    self._changed.notify_all()
                self._queue.task_done()
                self._prepare()
        self._queue.task_done()

    def _prepare(self) -> None:
        """Pin memory for future prompts, as long as none waits."""
        try:
            while self._queue.empty() and self._donors.tiers.prepare(_AHEAD_BYTES):
                pass
        except Exception as error:
            logger.warning("SemBlend could not pin memory ahead: %s", error)

    @torch.inference_mode()
    def _store(self, job: _Job) -> int:
        """Store one prompt; returns the bytes that were copied."""
        reach(FaultPoint.KILLED_WORKER)
        IN_FLIGHT.sweep()  # what loads have read may be evicted to make room
        command, tiers = job.command, self._donors.tiers
        nbytes = len(command.tokens) * self._access.token_bytes
        if not tiers.could_hold(nbytes):
            raise CapacityError(f"its {nbytes} bytes do not fit, whatever is evicted")
        keys = segment_keys(command.share_key, command.tokens)
        self._donors.claim(command.donor_id, command.tokens, keys)
        copied = 0
        for batch in self._batches([key for key in keys if key not in tiers]):
            self._check_wanted(command)
            copied += self._store_batch(job, batch)
        if not self._donors.is_whole(command.donor_id):
            raise CapacityError("it was evicted while it was stored")
        self._check_wanted(command)
        return copied

    def _check_wanted(self, command: CaptureCommand) -> None:
        with self._changed:
            if command.request_id in self._overwritten:
                raise DonorError("its blocks were needed before it was copied")

    def _store_batch(self, job: _Job, batch: list[SegmentKey]) -> int:
        """Read neighbouring segments at once, and put each into its own memory."""
        command = job.command
        with self._read(command.block_ids, batch, job.ready) as parts:
            self._check_wanted(command)
            stored = self._storers.map(self._put, batch, parts)
            if not all([tier is not None for tier in stored]):  # noqa: C419 - all are waited for
                raise CapacityError("no tier has room for it")
            return sum(part.nbytes for part in parts)

    def _put(self, key: SegmentKey, part: torch.Tensor) -> str | None:
        """Store one segment; on a separate thread, because its checksum takes time."""
        tiers = self._donors.tiers

        def load() -> Segment:
            if not part.is_cuda:
                return Segment(key=key, kv=part)
            kv = tiers.empty(part.shape, part.dtype, torch.device("cpu"))
            with torch.cuda.stream(self._side()):
                kv.copy_(part, non_blocking=True)
                arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
                arrived.record()
            arrived.synchronize()
            return Segment(key=key, kv=kv)

        return tiers.put_from(key, part.nbytes, load)

    @fault_point(FaultPoint.CAPTURE)
    def _read(
        self, block_ids: tuple[int, ...], batch: list[SegmentKey], ready: Any
    ) -> AbstractContextManager[list[torch.Tensor]]:
        """The segments' K/V, contiguous and one after another, on the cache's device."""
        if ready is None:
            start, end = batch[0].start, batch[-1].start + batch[-1].length
            return nullcontext(self._reader.read(block_ids, start, end))
        return self._read_on_device(block_ids, batch, ready)

    @contextmanager
    def _read_on_device(
        self, block_ids: tuple[int, ...], batch: list[SegmentKey], ready: Any
    ) -> Iterator[list[torch.Tensor]]:
        # On a separate stream: the engine's kernels do not wait for the copy.
        side = self._side()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            start, end = batch[0].start, batch[-1].start + batch[-1].length
            parts = self._reader.read(block_ids, start, end)
        # Only what was read before its blocks were reused may be stored.
        side.synchronize()
        try:
            yield parts
        finally:
            side.synchronize()  # a copy that failed may still read them

    def _side(self) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                self._access.device
            )
        return self._stream

    def _batches(self, keys: list[SegmentKey]) -> Iterator[list[SegmentKey]]:
        """Neighbouring segments, as many as are read at once.

        Reads are few and large: each needs the interpreter's lock, which the engine's thread holds.
        """
        most = max(SEGMENT_TOKENS, _READ_BYTES // self._access.token_bytes)
        batch: list[SegmentKey] = []
        for key in keys:
            if batch and (
                key.start != batch[-1].start + batch[-1].length
                or key.start + key.length - batch[0].start > most
            ):
                yield batch
                batch = []
            batch.append(key)
        if batch:
            yield batch
