"""Moves the engine's blocking events to the event loop: one short-lived thread per request."""

from __future__ import annotations

import asyncio
import threading

from semblend.core.errors import RequestError
from semblend.engine.api import Event, FinishedEvent, RequestReport
from semblend.serve.protocols import ServedHandle


class BrokenHandleError(RequestError):
    """The engine's events stopped without a FinishedEvent."""


class EventRelay:
    """Passes a handle's events to one coroutine, in order, and knows when the engine is done.

    The thread is a daemon that only blocks in the handle, so an engine that never finishes
    cannot delay process exit. The request's own token limit bounds the queue.
    """

    def __init__(self, handle: ServedHandle) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self.ended = asyncio.Event()
        """Set once the engine is done with the request, however it ended."""
        self.finished: FinishedEvent | None = None
        threading.Thread(target=self._pump, name="semblend-relay", daemon=True).start()

    async def next(self) -> Event:
        """The next event.

        Raises
        ------
        BrokenHandleError
            If the engine's iterator failed or ended early.
        """
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise BrokenHandleError("the engine lost this request") from event
        return event

    @property
    def prompt_report(self) -> RequestReport | None:
        """What happened to the prompt, available from the first token on."""
        return self._handle.prompt_report

    def cancel(self) -> None:
        """Ask the engine to stop; its FinishedEvent still arrives."""
        self._handle.cancel()

    def _pump(self) -> None:
        try:
            for event in self._handle.events():
                self._post(event)
        except Exception as error:
            self._post(error)
        self._post(None)

    def _post(self, event: Event | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._receive, event)
        except RuntimeError:
            # The loop is closed: the server is gone, and so is any listener.
            return

    def _receive(self, event: Event | BaseException | None) -> None:
        if isinstance(event, FinishedEvent):
            self.finished = event
        if event is not None:
            self._events.put_nowait(event)
            return
        if self.finished is None:
            self._events.put_nowait(BrokenHandleError("no FinishedEvent"))
        self.ended.set()
