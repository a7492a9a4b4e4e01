"""Answering one generation request, whole or streamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from semblend.engine.api import Event, FinishedEvent, GenerationRequest, TokenEvent
from semblend.serve.auth import Caller
from semblend.serve.dialects import Chunk, Dialect
from semblend.serve.disconnect import until_disconnect
from semblend.serve.errors import ApiError
from semblend.serve.exchange import Desk, Exchange
from semblend.serve.reports import reuse_headers, reuse_report, usage

_LAST_BYTES_S = 5.0
"""How long past its deadline a stream may take to tell a slow reader that time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked request, ready for the engine, and how to say its answer."""

    request: GenerationRequest
    dialect: Dialect
    caller: Caller
    request_id: str
    endpoint: str
    stream: bool
    include_usage: bool


async def answer(desk: Desk, job: Job, http: Request) -> Response:
    """Run a job and answer it. Errors before the first token keep their HTTP status."""
    exchange = Exchange(
        desk,
        caller=job.caller,
        request_id=job.request_id,
        endpoint=job.endpoint,
        stream=job.stream,
    )
    try:
        if job.stream:
            return await until_disconnect(http, _streamed(desk, job, exchange))
        return await until_disconnect(http, _whole(desk, job, exchange))
    except BaseException:
        exchange.close()
        raise


async def _whole(desk: Desk, job: Job, exchange: Exchange) -> Response:
    await exchange.begin(job.request)
    tokens: list[TokenEvent] = []
    finished: FinishedEvent | None = None
    async for event in exchange.events():
        if isinstance(event, FinishedEvent):
            finished = event
        else:
            tokens.append(event)
    if finished is None:
        raise ApiError(500, "the engine gave no result", code="internal_error")
    report = reuse_report(finished.report, tenant=job.caller.tenant, names=desk.names)
    reply = job.dialect.whole(tokens, finished.reason, usage(finished.report), report)
    return JSONResponse(reply.model_dump(), headers=reuse_headers(report, final=True))


async def _streamed(desk: Desk, job: Job, exchange: Exchange) -> Response:
    await exchange.begin(job.request)
    events = exchange.events()
    # Wait for the first token: until then a failure can still be a proper status code,
    # and what happened to the prompt is known by then.
    first = await anext(events)
    headers: dict[str, str] = {}
    if exchange.prompt_report is not None:
        report = reuse_report(exchange.prompt_report, tenant=job.caller.tenant, names=desk.names)
        headers = reuse_headers(report, final=False)
    return _EventStream(_frames(desk, job, first, events), exchange=exchange, headers=headers)


async def _frames(
    desk: Desk, job: Job, first: Event, rest: AsyncIterator[Event]
) -> AsyncIterator[bytes]:
    opening = job.dialect.opening()
    if opening is not None:
        yield _frame(opening)
    try:
        async for event in _chain(first, rest):
            if isinstance(event, TokenEvent):
                chunk = job.dialect.token(event)
                if chunk is not None:
                    yield _frame(chunk)
            else:
                for chunk in _last_chunks(desk, job, event):
                    yield _frame(chunk)
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield _frame(error.body())


def _last_chunks(desk: Desk, job: Job, event: FinishedEvent) -> list[Chunk]:
    report = reuse_report(event.report, tenant=job.caller.tenant, names=desk.names)
    chunks = [job.dialect.closing(event.reason)]
    if job.include_usage:
        chunks.append(job.dialect.usage(usage(event.report)))
    chunks[-1]["semblend"] = report.model_dump()
    return chunks


async def _chain(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    yield first
    async for event in rest:
        yield event


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class _EventStream(StreamingResponse):
    """Server-sent events whose exchange is closed however the sending ends.

    A generator that was never started runs no `finally`, so the response itself does it.
    """

    def __init__(
        self, frames: AsyncIterator[bytes], *, exchange: Exchange, headers: dict[str, str]
    ) -> None:
        super().__init__(
            frames, media_type="text/event-stream", headers={"x-accel-buffering": "no", **headers}
        )
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A reader that takes nothing off the wire must not hold a place for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._exchange.deadline + _LAST_BYTES_S):
                    await super().__call__(scope, receive, send)
        finally:
            self._exchange.close()
