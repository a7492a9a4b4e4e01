"""Answers one generation request, complete or streamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from semblend.engine.api import (
    Event,
    FinishedEvent,
    GenerationRequest,
    RequestReport,
    TokenEvent,
)
from semblend.serve.api_errors import ApiError
from semblend.serve.auth import Caller
from semblend.serve.disconnect import until_disconnect
from semblend.serve.lifecycle import RequestLifecycle, ServerContext
from semblend.serve.openai.dialects import Chunk, Dialect
from semblend.serve.openai.replies import PromptTokensDetails, ReuseReport, Usage
from semblend.serve.reports import reuse_headers, reuse_report, usage

_LAST_BYTES_S = 5.0
"""Grace time for telling a slow reader that the deadline has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """One choice of an answer: the engine request and how to format its result."""

    request: GenerationRequest
    dialect: Dialect
    counts_prompt: bool = True
    """False for a further answer to a prompt that another part already counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """A checked request, ready for the engine. Its parts are answered one after another."""

    parts: tuple[AnswerPart, ...]
    caller: Caller
    request_id: str
    endpoint: str
    stream: bool
    include_usage: bool


class Course:
    """Runs the exchanges of one job, one at a time; closing it stops the current one."""

    def __init__(self, context: ServerContext, job: GenerationJob) -> None:
        self._context = context
        self._job = job
        self._lifecycle: RequestLifecycle | None = None
        self._left = len(job.parts)

    async def begin(self, part: AnswerPart) -> RequestLifecycle:
        """Hand a part to the engine."""
        self._lifecycle = RequestLifecycle(
            self._context,
            caller=self._job.caller,
            request_id=self._job.request_id,
            endpoint=self._job.endpoint,
            stream=self._job.stream,
        )
        self._left -= 1
        await self._lifecycle.begin(part.request)
        return self._lifecycle

    @property
    def deadline(self) -> float:
        """When the last part must be over, on the loop's clock."""
        running = 0.0 if self._lifecycle is None else self._lifecycle.deadline
        return running + self._left * self._context.options.request_timeout_s

    def report(self, finished: RequestReport) -> ReuseReport:
        """A report as this job's caller may see it."""
        return reuse_report(finished, tenant=self._job.caller.tenant, names=self._context.names)

    def close(self) -> None:
        if self._lifecycle is not None:
            self._lifecycle.close()


async def answer(context: ServerContext, job: GenerationJob, http: Request) -> Response:
    """Run a job and answer it. Errors before the first token keep their HTTP status."""
    course = Course(context, job)
    try:
        if job.stream:
            return await until_disconnect(http, _streamed(job, course))
        return await until_disconnect(http, _whole(job, course))
    except BaseException:
        course.close()
        raise


async def _whole(job: GenerationJob, course: Course) -> Response:
    choices: list[Any] = []
    reports: list[RequestReport] = []
    for part in job.parts:
        lifecycle = await course.begin(part)
        tokens: list[TokenEvent] = []
        finished: FinishedEvent | None = None
        async for event in lifecycle.events():
            if isinstance(event, FinishedEvent):
                finished = event
            else:
                tokens.append(event)
        if finished is None:
            raise ApiError(500, "the engine returned no result", code="internal_error")
        reports.append(finished.report)
        own = course.report(finished.report) if len(job.parts) > 1 else None
        choices.append(part.dialect.choice(tokens, finished.reason, own))
    report = course.report(reports[0])
    reply = job.parts[0].dialect.whole(choices, _usage_of(job, reports), report)
    body = reply.model_dump()
    for choice in body["choices"]:
        if choice["semblend"] is None:
            del choice["semblend"]
    return JSONResponse(body, headers=reuse_headers(report, final=True))


async def _streamed(job: GenerationJob, course: Course) -> Response:
    lifecycle = await course.begin(job.parts[0])
    events = lifecycle.events()
    # Wait for the first token. Until then a failure can still get a proper status code, and
    # what happened to the prompt is known by then.
    first = await anext(events)
    headers: dict[str, str] = {}
    if lifecycle.prompt_report is not None:
        headers = reuse_headers(course.report(lifecycle.prompt_report), final=False)
    return _EventStream(_frames(job, course, first, events), course=course, headers=headers)


async def _frames(
    job: GenerationJob, course: Course, first: Event, rest: AsyncIterator[Event]
) -> AsyncIterator[bytes]:
    reports: list[RequestReport] = []
    try:
        for number, part in enumerate(job.parts):
            last = number == len(job.parts) - 1
            events = _chain(first, rest) if number == 0 else (await course.begin(part)).events()
            opening = part.dialect.opening()
            if opening is not None:
                yield _frame(opening)
            async for event in events:
                if isinstance(event, TokenEvent):
                    chunk = part.dialect.token(event)
                    if chunk is not None:
                        yield _frame(chunk)
                else:
                    reports.append(event.report)
                    for chunk in _last_chunks(job, course, part, event, reports, last):
                        yield _frame(chunk)
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield _frame(error.body())


def _last_chunks(
    job: GenerationJob,
    course: Course,
    part: AnswerPart,
    event: FinishedEvent,
    reports: list[RequestReport],
    last: bool,
) -> list[Chunk]:
    """The end of a choice; after the last one, token counts and the first prompt's report."""
    chunks = [part.dialect.closing(event.reason)]
    if len(job.parts) > 1:
        chunks[0]["choices"][0]["semblend"] = course.report(event.report).model_dump()
    if not last:
        return chunks
    if job.include_usage:
        chunks.append(part.dialect.usage(_usage_of(job, reports)))
    chunks[-1]["semblend"] = course.report(reports[0]).model_dump()
    return chunks


def _usage_of(job: GenerationJob, reports: Sequence[RequestReport]) -> Usage:
    """Token counts of all choices; a prompt counts once, however many answers it has."""
    prompts = [
        usage(report) for part, report in zip(job.parts, reports, strict=True) if part.counts_prompt
    ]
    prompt = sum(one.prompt_tokens for one in prompts)
    output = sum(report.output_tokens for report in reports)
    cached = sum(one.prompt_tokens_details.cached_tokens for one in prompts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


async def _chain(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    yield first
    async for event in rest:
        yield event


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class _EventStream(StreamingResponse):
    """Server-sent events whose course is closed however sending ends.

    A generator that never started runs no `finally`, so the response closes it.
    """

    def __init__(
        self, frames: AsyncIterator[bytes], *, course: Course, headers: dict[str, str]
    ) -> None:
        super().__init__(
            frames, media_type="text/event-stream", headers={"x-accel-buffering": "no", **headers}
        )
        self._course = course

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A client that stops reading must not hold a slot forever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._course.deadline + _LAST_BYTES_S):
                    await super().__call__(scope, receive, send)
        finally:
            self._course.close()
