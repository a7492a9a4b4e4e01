"""Copying prompts' K/V out of the paged cache, behind the request's back.

K/V of a prompt does not change once its prefill is done, so the copy needs no place
in the step: a thread makes it while the request decodes. The scheduler keeps the
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
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.errors import CapacityError, DonorError
from semblend.core.faults import FaultPoint, fault_point, reach
from semblend.integration.vllm.donors import SEGMENT_TOKENS, WorkerDonors, segment_keys
from semblend.integration.vllm.metadata import CaptureCommand, WorkerReport
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.kv.segments import Segment, SegmentKey

logger = logging.getLogger("vllm.semblend")

_IDLE_WAIT_S = 0.005
"""A new request that arrives meanwhile waits no longer than this."""
_READ_BYTES = 64 << 20
_WAIT_S = 30.0
"""Longest wait for a copy of blocks that are about to be overwritten; copies take far less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    command: CaptureCommand
    ready: Any
    """A CUDA event after which the K/V is written, or None on a CPU."""


class CaptureThread:
    """Stores prompts as donors, one after another, and remembers what to report."""

    def __init__(self, access: PagedAccess, donors: WorkerDonors) -> None:
        self._access = access
        self._donors = donors
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._pending: Counter[str] = Counter()
        self._overwritten: set[str] = set()
        self._changed = threading.Condition()
        self._report = WorkerReport(layers=len(access.layers))
        self._stream: Any = None
        self.on_stored: Callable[[CaptureCommand], None] | None = None
        """Hears of every prompt that was stored, on this thread."""
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
                # What is copied from now on may be another request's: it is not kept.
                self._overwritten.update(request_ids)
        if not done:
            logger.warning("SemBlend did not copy %s in %.0f s", request_ids, _WAIT_S)

    def wait_a_little(self, request_ids: set[str]) -> None:
        """Give way to the copy of these requests' blocks: there is nothing else to do."""
        with self._changed:
            self._changed.wait_for(
                lambda: not all(self._pending[request_id] for request_id in request_ids),
                timeout=_IDLE_WAIT_S,
            )

    def wait(self) -> None:
        """Wait until everything submitted so far is stored. For tests and benchmarks."""
        self._queue.join()

    def abandon(self) -> None:
        """Keep nothing of what waits; returns once no block is read any more.

        Raises
        ------
        DonorError
            If a copy does not end. What was to happen to the K/V cache must not.
        """
        with self._changed:
            self._overwritten.update(self._pending)
            if not self._changed.wait_for(lambda: not self._pending, timeout=_WAIT_S):
                raise DonorError(f"K/V of {sorted(self._pending)} is still being copied")

    def take_report(self) -> WorkerReport:
        """What was stored since the last call."""
        with self._changed:
            report, self._report = self._report, WorkerReport(layers=len(self._access.layers))
        return report

    def close(self) -> None:
        """Stop once everything submitted is stored. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
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
                if self.on_stored is not None and command.shared_as is not None:
                    self.on_stored(command)
            except BaseException as error:
                # A donor the less is no harm to any request; a thread the less would hold the
                # blocks of everything that waits in line.
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
        self._queue.task_done()

    @torch.inference_mode()
    def _store(self, job: _Job) -> int:
        """Store one prompt; returns the bytes that were copied."""
        reach(FaultPoint.KILLED_WORKER)
        command, tiers = job.command, self._donors.tiers
        keys = segment_keys(command.share_key, command.tokens)
        self._donors.claim(command.donor_id, command.tokens, keys)
        copied = 0
        for batch in self._batches([key for key in keys if key not in tiers]):
            start, end = batch[0].start, batch[-1].start + batch[-1].length
            self._check_wanted(command)
            kv = self._read(command.block_ids, start, end, job.ready)
            copied += kv.nbytes
            self._check_wanted(command)
            for key in batch:
                part = kv[:, :, key.start - start : key.start - start + key.length]
                if tiers.put(Segment(key=key, kv=part.contiguous())) is None:
                    raise CapacityError("no tier has room for it")
        if not self._donors.is_whole(command.donor_id):
            raise CapacityError("it was evicted while it was stored")
        self._check_wanted(command)
        return copied

    def _check_wanted(self, command: CaptureCommand) -> None:
        with self._changed:
            if command.request_id in self._overwritten:
                raise DonorError("its blocks were needed before it was copied")

    def _batches(self, keys: list[SegmentKey]) -> Iterator[list[SegmentKey]]:
        """Neighbouring segments, as many as are read at once.

        Few large reads: each needs the interpreter's lock, which the engine's thread holds.
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

    @fault_point(FaultPoint.CAPTURE)
    def _read(self, block_ids: tuple[int, ...], start: int, end: int, ready: Any) -> torch.Tensor:
        if ready is None:
            return self._access.read(block_ids, start, end)
        # On a stream of its own, so that the engine's kernels do not wait for the copy.
        if self._stream is None:
            # A thread starts out on device 0, whichever its worker's is; what it pins or launches
            # without naming a device would make a context there.
            torch.cuda.set_device(self._access.device)
            self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                self._access.device
            )
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            kv = self._access.read(block_ids, start, end).to("cpu", non_blocking=True)
        self._stream.synchronize()
        return kv
