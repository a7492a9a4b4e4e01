"""A thread that copies K/V beside the engine, on its own stream.

Jobs run one after another. The caller names the request whose blocks a job touches; until it is
done those blocks must stay, and `is_busy` says so.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.faults import FaultPoint, reach

logger = logging.getLogger("semblend.adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    request_id: int
    work: Callable[[], None]
    done: Callable[[BaseException | None], None]
    ready: Any
    """A CUDA event after which the blocks may be touched, or None on a CPU."""


class CopyThread:
    """Runs jobs in order; every job gets an answer, whatever happens in it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._busy: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        request_id: int,
        work: Callable[[], None],
        done: Callable[[BaseException | None], None],
        stream: Any = None,
    ) -> None:
        """Run `work` once everything on `stream` so far is done; then call `done`."""
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(stream)
        with self._lock:
            self._busy[request_id] += 1
        self._queue.put(_Job(request_id=request_id, work=work, done=done, ready=ready))

    def is_busy(self, request_id: int) -> bool:
        """Whether a job still touches this request's blocks."""
        with self._lock:
            return self._busy[request_id] > 0

    def wait(self) -> None:
        """Wait until everything submitted so far is done."""
        self._queue.join()

    def close(self) -> None:
        """Stop once everything submitted is done. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            error: BaseException | None = None
            try:
                with self._on_own_stream(job.ready):
                    reach(FaultPoint.KILLED_WORKER)
                    job.work()
            except BaseException as raised:
                # Whatever it was: an unfinished copy must not pass for a finished one, and
                # those behind it wait for this thread.
                error = raised
            # Free the blocks before reporting that they are free.
            with self._lock:
                self._busy[job.request_id] -= 1
                if not self._busy[job.request_id]:
                    del self._busy[job.request_id]
            try:
                job.done(error)
            except Exception:
                logger.warning("SemBlend could not report a copy", exc_info=True)
            self._queue.task_done()
        self._queue.task_done()

    @contextlib.contextmanager
    def _on_own_stream(self, ready: Any) -> Any:
        if ready is None:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            yield
        self._stream.synchronize()
