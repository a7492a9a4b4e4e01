"""The caller's handle on a submitted request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from semblend.engine.api import Event, FinishedEvent, FinishReason, RequestReport, TokenEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished request in one piece."""

    token_ids: tuple[int, ...]
    text: str
    reason: FinishReason
    report: RequestReport
    error: str = ""
    events: tuple[TokenEvent, ...] = ()


class RequestHandle:
    """A submitted request. Thread-safe; events may be read any number of times."""

    def __init__(self, request_id: str, *, on_cancel: Callable[[], None]) -> None:
        self.request_id = request_id
        self._on_cancel = on_cancel
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._cancelled = False
        self.prompt_report: RequestReport | None = None
        """What happened to the prompt. Set just before the first token's event."""

    @property
    def cancelled(self) -> bool:
        """Whether cancellation was requested."""
        return self._cancelled

    @property
    def done(self) -> bool:
        """Whether the last event has arrived."""
        with self._changed:
            return bool(self._events) and isinstance(self._events[-1], FinishedEvent)

    def events(self) -> Iterator[Event]:
        """Block for each event in turn. The last is always a FinishedEvent."""
        index = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=index: len(self._events) > at)  # type: ignore[misc]
                event = self._events[index]
            yield event
            if isinstance(event, FinishedEvent):
                return
            index += 1

    def cancel(self) -> None:
        """Ask the engine to stop. Idempotent and thread-safe."""
        self._cancelled = True
        self._on_cancel()

    def result(self) -> GenerationResult:
        """Wait for the end and return everything."""
        *tokens, last = list(self.events())
        if not isinstance(last, FinishedEvent):  # pragma: no cover - events() ends with one
            raise TypeError("the last event of a request is a FinishedEvent")
        generated = tuple(event for event in tokens if isinstance(event, TokenEvent))
        return GenerationResult(
            token_ids=tuple(event.token_id for event in generated),
            text="".join(event.text for event in generated),
            reason=last.reason,
            report=last.report,
            error=last.error,
            events=generated,
        )

    def push(self, event: Event) -> None:
        """Add an event. Called by the engine."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
