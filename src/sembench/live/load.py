"""Load: many requests at once, following an arrival process.

Under open arrivals a request is late from the moment it was due, not from the moment it
was sent. Time spent waiting inside the client counts, so an overloaded endpoint cannot
hide its delay by slowing the client down.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from sembench.errors import UsageError
from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.live.identity import RequestName
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.reply import Reply
from sembench.load_results import LoadRow
from sembench.model import ManifestItem


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How much load, and for how long."""

    run_id: str
    arrivals: Arrivals
    concurrency: int = 64
    """Users of a closed loop, or the in-flight limit of an open one."""
    requests: int | None = None
    duration_seconds: float | None = None
    max_tokens: int = 32

    def __post_init__(self) -> None:
        if self.requests is None and self.duration_seconds is None:
            raise UsageError("give --requests, --duration-seconds or both")
        if self.concurrency < 1:
            raise UsageError(f"--concurrency: expected at least 1, got {self.concurrency}")

    @property
    def closed(self) -> bool:
        """Whether users wait for an answer before they ask again."""
        return self.arrivals.kind is ArrivalKind.CLOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """One scheduled request."""

    position: int
    offset_s: float
    item: ManifestItem


async def run_load(
    client: EngineClient,
    items: Sequence[ManifestItem],
    options: LoadOptions,
    *,
    done: Sequence[LoadRow] = (),
) -> AsyncIterator[LoadRow]:
    """Send the items' recipients in a cycle and yield each request once it is answered.

    `done` holds the rows of an interrupted run; its schedule continues with the missing ones.
    """
    if not items:
        raise UsageError("--manifest: no items to send")
    schedule = _schedule(items, options, done)
    first = next(schedule, None)
    if first is None:
        return
    # The schedule's clock starts where the run was interrupted; nothing before that is late.
    session = _stopped_at(options, done, first)
    started = time.perf_counter() - session
    running: set[asyncio.Task[LoadRow]] = set()
    try:
        for due in itertools.chain((first,), schedule):
            elapsed = time.perf_counter() - started
            if _is_over(options, elapsed if options.closed else due.offset_s):
                break
            if due.offset_s > elapsed:
                await asyncio.sleep(due.offset_s - elapsed)
            while len(running) >= options.concurrency:
                finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    yield task.result()
            at = time.perf_counter() - started if options.closed else due.offset_s
            sending = _send(client, due, at, options, started=started, session=session)
            running.add(asyncio.create_task(sending))
        for answered in asyncio.as_completed(running):
            yield await answered
        running = set()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _schedule(
    items: Sequence[ManifestItem], options: LoadOptions, done: Sequence[LoadRow]
) -> Iterator[_Due]:
    answered = {row.position for row in done}
    numbered = enumerate(zip(options.arrivals.offsets(), itertools.cycle(items), strict=False))
    for position, (offset, item) in itertools.islice(numbered, options.requests):
        if position not in answered:
            yield _Due(position=position, offset_s=offset, item=item)


def _stopped_at(options: LoadOptions, done: Sequence[LoadRow], first: _Due) -> float:
    """Where on the schedule's clock this session starts."""
    if not done:
        return 0.0
    return max(row.end_s for row in done) if options.closed else first.offset_s


def _is_over(options: LoadOptions, at: float) -> bool:
    return options.duration_seconds is not None and at >= options.duration_seconds


async def _send(
    client: EngineClient,
    due: _Due,
    at: float,
    options: LoadOptions,
    *,
    started: float,
    session: float,
) -> LoadRow:
    name = RequestName(
        run_id=options.run_id,
        arm="single",
        item_id=due.item.item_id,
        role="load",
        position=due.position,
    )
    lag_ms = max(0.0, time.perf_counter() - started - at) * 1000.0
    reply = await client.complete(
        Prompt(request_id=str(name), text=due.item.recipient_prompt, max_tokens=options.max_tokens)
    )
    return LoadRow(
        position=due.position,
        item_id=due.item.item_id,
        request_id=reply.request_id,
        due_s=at,
        lag_ms=lag_ms,
        latency_ms=reply.latency_ms + lag_ms,
        ttft_ms=None if reply.ttft_ms is None else reply.ttft_ms + lag_ms,
        tpot_ms=_tpot_ms(reply),
        gaps_ms=reply.gaps_ms,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens,
        cached_tokens=reply.cached_tokens,
        reused_tokens=reply.reused_tokens,
        session_s=session,
        error=reply.error,
    )


def _tpot_ms(reply: Reply) -> float | None:
    tokens = reply.output_tokens
    if reply.ttft_ms is None or tokens is None:
        return None
    return (reply.latency_ms - reply.ttft_ms) / (tokens - 1) if tokens > 1 else 0.0
