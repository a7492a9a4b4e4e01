"""One request's path through the engine, from admission to accounting.

However a request ends, an exchange makes sure that three things happen exactly once: its
engine slot is released (only after the engine has let go), its report is counted, and one
line is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import (
    CapacityError,
    EngineBusyError,
    RequestError,
    RequestFieldError,
)
from semblend.engine.api import (
    Event,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    RequestReport,
)
from semblend.serve.api_errors import ApiError, internal_error
from semblend.serve.auth import Caller, Pseudonyms
from semblend.serve.entry_queue import EntryQueue, Ticket
from semblend.serve.options import ServeOptions
from semblend.serve.protocols import ServedEngine, ServedHandle
from semblend.serve.relay import BrokenHandleError, EventRelay
from semblend.serve.watch.activity import Activity, RequestView
from semblend.serve.watch.json_logs import log
from semblend.serve.watch.server_audit import ServerAudit
from semblend.serve.watch.server_metrics import ServerMetrics

_ENGINE_FIELDS = ("logit_bias", "response_format")
"""Engine refusals that a caller knows by the same name."""

_LET_GO_S = 60.0
"""How long to wait for the engine to confirm a cancellation before reusing the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """What all exchanges of one server share."""

    engine: ServedEngine
    options: ServeOptions
    entry_queue: EntryQueue
    activity: Activity
    metrics: ServerMetrics
    names: Pseudonyms
    audit: ServerAudit | None
    background: set[asyncio.Task[None]]
    """Settlements that outlive their request; awaited on shutdown."""


class RequestLifecycle:
    """One request: call `begin`, read the events, call `close`."""

    def __init__(
        self,
        context: ServerContext,
        *,
        caller: Caller,
        request_id: str,
        endpoint: str,
        stream: bool,
    ) -> None:
        self._context = context
        self._caller = caller
        self._request_id = request_id
        self._endpoint = endpoint
        self._stream = stream
        self._view: RequestView | None = None
        self._ticket: Ticket | None = None
        self._relay: EventRelay | None = None
        self._deadline = 0.0
        self._settled = False
        self._closing = False
        self._timed_out = False
        self._produced = 0

    @property
    def deadline(self) -> float:
        """When the request must be over, on the loop's clock."""
        return self._deadline

    @property
    def prompt_report(self) -> RequestReport | None:
        """What happened to the prompt, available from the first token on."""
        return None if self._relay is None else self._relay.prompt_report

    async def begin(self, request: GenerationRequest) -> None:
        """Wait for a slot and hand the request to the engine.

        Raises
        ------
        ApiError
            If there is no slot, or the engine refuses the request.
        """
        self._view = self._context.activity.begin(
            request_id=self._request_id,
            tenant=self._caller.tenant,
            endpoint=self._endpoint,
            stream=self._stream,
            tokens=len(request.tokens),
        )
        self._ticket = await self._context.entry_queue.enter(self._caller.tenant)
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + self._context.options.request_timeout_s
        # On a thread, because an engine may block on a lock or search for donors here.
        submission = asyncio.ensure_future(asyncio.to_thread(self._context.engine.submit, request))
        try:
            self._adopt(await asyncio.shield(submission))
        except asyncio.CancelledError:
            # The thread cannot be stopped: take its result, so that it can be cancelled.
            with contextlib.suppress(Exception):
                self._adopt(await submission)
            raise
        except (EngineBusyError, CapacityError) as error:
            raise _no_room() from error
        except RequestError as error:
            field = error.field if isinstance(error, RequestFieldError) else None
            param = field if field in _ENGINE_FIELDS else None
            raise ApiError(400, str(error), param=param, code="refused_by_engine") from error

    def _adopt(self, handle: ServedHandle) -> None:
        self._relay = EventRelay(handle)
        if self._ticket is not None:
            self._ticket.cancel = self._relay.cancel
        if self._view is not None:
            self._context.activity.running(self._view)

    async def events(self) -> AsyncIterator[Event]:
        """The engine's events, within the request's time limit.

        Raises
        ------
        ApiError
            504 if time is up, 503 if the server stops, 500 if the engine failed.
        """
        if self._relay is None:
            raise internal_error()
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    event = await self._relay.next()
            except TimeoutError:
                self._timed_out = True
                self._relay.cancel()
                raise ApiError(
                    504,
                    f"not finished within {self._context.options.request_timeout_s:g} seconds; "
                    "request fewer tokens",
                    code="request_timeout",
                ) from None
            except BrokenHandleError as error:
                log("engine_lost_request", level=logging.ERROR, error=error, **self._identity())
                raise internal_error() from error
            if isinstance(event, FinishedEvent):
                self._check_end(event)
                self.settle()
                yield event
                return
            self._produced += 1
            if self._view is not None and (self._produced == 1 or self._produced % 8 == 0):
                self._context.activity.progress(self._view, self._produced)
            yield event

    def settle(self) -> None:
        """Release the slot and record the report; only the first call has an effect."""
        if self._settled:
            return
        self._settled = True
        finished = self._relay.finished if self._relay is not None else None
        report = finished.report if finished is not None else None
        if self._ticket is not None:
            self._ticket.release()
        if self._view is not None:
            self._context.activity.finish(self._view, self._state(finished), report)
        if report is not None:
            self._context.metrics.observe(report)
            if self._context.audit is not None:
                self._context.audit.settled(report, tenant=self._caller.tenant)
        log("generation", state=self._state(finished), **self._identity(), **_figures(report))

    def close(self) -> None:
        """Stop whatever still runs; settle now, or as soon as the engine lets go."""
        self._closing = True
        if self._settled:
            return
        if self._relay is None or self._relay.ended.is_set():
            self.settle()
            return
        self._relay.cancel()
        task = asyncio.get_running_loop().create_task(self._settle_later(self._relay))
        self._context.background.add(task)
        task.add_done_callback(self._context.background.discard)

    async def _settle_later(self, relay: EventRelay) -> None:
        try:
            async with asyncio.timeout(_LET_GO_S):
                await relay.ended.wait()
        except TimeoutError:
            log("engine_holds_cancelled_request", level=logging.ERROR, **self._identity())
        finally:
            self.settle()

    def _check_end(self, event: FinishedEvent) -> None:
        if event.reason is FinishReason.ERROR:
            log("engine_failed_request", level=logging.ERROR, **self._identity())
            self.settle()
            raise internal_error()
        if event.reason is FinishReason.CANCELLED:
            self.settle()
            if not self._context.entry_queue.draining:
                log("engine_cancelled_request", level=logging.ERROR, **self._identity())
                raise internal_error()
            raise ApiError(
                503,
                "the request was stopped because the server is shutting down",
                code="server_stopping",
                retry_after_s=5,
            )

    def _state(self, finished: FinishedEvent | None) -> str:
        if finished is None:
            return "refused" if self._relay is None else "failed"
        if finished.reason is FinishReason.CANCELLED:
            return "timed_out" if self._timed_out else "cancelled"
        return "failed" if finished.reason is FinishReason.ERROR else "finished"

    def _identity(self) -> dict[str, Any]:
        return {
            "request_id": self._request_id,
            "tenant": self._context.names.tenant(self._caller.tenant),
            "endpoint": self._endpoint,
            "stream": self._stream,
        }


def _no_room() -> ApiError:
    """The request itself was already checked, so this is about the engine's state."""
    return ApiError(503, "the engine has no room; try again", code="no_capacity", retry_after_s=1)


def _figures(report: RequestReport | None) -> dict[str, Any]:
    if report is None:
        return {}
    return {
        "outcome": report.outcome.value,
        "reason": None if report.reason is None else report.reason.value,
        "prompt_tokens": report.prompt_tokens,
        "exact_tokens": report.exact_tokens,
        "continued_tokens": report.continued_tokens,
        "reused_tokens": report.reused_tokens,
        "recomputed_tokens": report.recomputed_tokens,
        "computed_tokens": report.computed_tokens,
        "output_tokens": report.output_tokens,
        "donors": len(report.donor_ids),
        "policy": report.policy,
        "certified": report.certified,
        "queue_ms": round(report.queue_ms, 3),
        "lookup_ms": round(report.lookup_ms, 3),
        "prefill_ms": round(report.prefill_ms, 3),
        "ttft_ms": round(report.ttft_ms, 3),
        "total_ms": round(report.total_ms, 3),
    }
