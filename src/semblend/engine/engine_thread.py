"""The engine's only thread. It owns the scheduler, and everything else goes through it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from semblend.core.errors import EngineBusyError
from semblend.engine.api import FinishReason
from semblend.engine.scheduler import Scheduler
from semblend.engine.sequence import Sequence

logger = logging.getLogger("semblend.engine")

_RETRY_S = 0.005
"""Delay before retrying admission when the head of the queue had no room. Donor capture, on
another thread, also frees pages.
"""

Result = TypeVar("Result")


class Worker:
    """Runs the scheduler while there is work and sleeps otherwise. Work never ends the thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        max_waiting: int,
        background: Callable[[bool], bool] = lambda busy: False,
    ) -> None:
        """Start the thread.

        `background(busy)` gets the time between steps and returns whether it used it.
        """
        self._scheduler = scheduler
        self._max_waiting = max_waiting
        self._background = background
        self._inbox: deque[Sequence] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._live: set[str] = set()
        self._wake = threading.Condition()
        self._signalled = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="semblend-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs. Once it has ended, no request is answered."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Requests not admitted yet."""
        return len(self._inbox) + len(self._scheduler.waiting)

    @property
    def running(self) -> int:
        """Requests being computed."""
        return len(self._scheduler.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a request.

        Raises
        ------
        EngineBusyError
            If its id is in use, the queue is full or the engine is closing.
        """
        request_id = sequence.request.request_id
        with self._wake:
            if self._closing:
                raise EngineBusyError("the engine is closing and takes no more requests")
            if request_id in self._live:
                raise EngineBusyError(
                    f"request_id {request_id!r}: a request with this id is running"
                )
            if self.waiting >= self._max_waiting:
                raise EngineBusyError(
                    f"{self._max_waiting} requests are already waiting; try later"
                )
            self._live.add(request_id)
            self._inbox.append(sequence)
        self.wake()

    def forget(self, sequence: Sequence) -> None:
        """Forget a finished request, so that its id may be used again."""
        with self._wake:
            self._live.discard(sequence.request.request_id)

    def call(self, errand: Callable[[], Result]) -> Result:
        """Run something between two passes, on the thread that owns the scheduler's state.

        After that thread has ended, nothing else uses the state, so it runs on the caller's thread.
        """
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(errand())
            except BaseException as error:
                future.set_exception(error)

        with self._wake:
            closing = self._closing
            if not closing:
                self._errands.append(run)
        if closing:
            self._thread.join()
            run()
        self.wake()
        return future.result()

    def wake(self) -> None:
        """Wake the thread, because there may be work."""
        with self._wake:
            self._signalled = True
            self._wake.notify()

    def close(self) -> None:
        """Cancel everything and stop. Idempotent."""
        with self._wake:
            self._closing = True
        self.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # Exceptions are handled where they happen. This is the thread itself dying.
            logger.critical(
                "the engine's thread has ended; it no longer answers requests", exc_info=True
            )
            with self._wake:
                self._closing = True
                self._take_in()
            self._scheduler.abandon(FinishReason.ERROR, "the engine's thread has ended")

    def _take_in(self) -> None:
        """Run queued calls and pass new requests to the scheduler. Needs the lock."""
        while self._errands:
            self._errands.popleft()()
        self._scheduler.waiting.extend(self._inbox)
        self._inbox.clear()

    def _serve(self) -> None:
        while True:
            with self._wake:
                self._signalled = False
                closing = self._closing
                self._take_in()
            if closing:
                self._scheduler.abandon(FinishReason.CANCELLED, "the engine was closed")
                return
            busy = self._step()
            if not self._use_time(busy) and not busy:
                with self._wake:
                    timeout = _RETRY_S if self._scheduler.waiting else None
                    self._wake.wait_for(lambda: self._signalled, timeout)

    def _use_time(self, busy: bool) -> bool:
        try:
            return self._background(busy)
        except Exception:
            # This thread answers requests, so background work must not end it.
            logger.exception("background work between steps failed")
            return False

    def _step(self) -> bool:
        try:
            return self._scheduler.step()
        except Exception as error:
            # Not the failure of one request: those are handled where they happen.
            logger.exception("the engine's step failed; its requests end with an error")
            self._scheduler.abandon(FinishReason.ERROR, f"{type(error).__name__}: {error}")
            return True
