"""Load: many requests at once, by an arrival process, and how many were good enough.

Under open arrivals a request is late from the moment it was due, not from the
moment the client got round to sending it: waiting inside the client counts, so
that an overloaded endpoint cannot slow its own examiner down.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from sembench import statistics
from sembench.errors import UsageError
from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.live.identity import RequestName
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.reply import Reply
from sembench.model import ManifestItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service-level objective; a part that is None is not asked for."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None

    def met(self, sent: SentRequest) -> bool:
        """Whether a request was answered in time."""
        pairs = (
            (self.ttft_ms, sent.ttft_ms),
            (self.tpot_ms, sent.tpot_ms),
            (self.latency_ms, sent.latency_ms),
        )
        return sent.reply.ok and all(
            limit is None or (value is not None and value <= limit) for limit, value in pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """One request under load; times are from when it was due."""

    item_id: str
    due_s: float
    lag_ms: float
    """How much later than due it was sent."""
    reply: Reply

    @property
    def ttft_ms(self) -> float | None:
        """Due to first token."""
        return None if self.reply.ttft_ms is None else self.reply.ttft_ms + self.lag_ms

    @property
    def latency_ms(self) -> float:
        """Due to last token."""
        return self.reply.latency_ms + self.lag_ms

    @property
    def tpot_ms(self) -> float | None:
        """Time for each output token after the first."""
        tokens = self.reply.output_tokens
        if self.reply.ttft_ms is None or tokens is None:
            return None
        return (self.reply.latency_ms - self.reply.ttft_ms) / (tokens - 1) if tokens > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a load result."""
        return {
            "item_id": self.item_id,
            "request_id": self.reply.request_id,
            "due_s": self.due_s,
            "lag_ms": self.lag_ms,
            "ttft_ms": self.ttft_ms,
            "tpot_ms": self.tpot_ms,
            "latency_ms": self.latency_ms,
            "output_tokens": self.reply.output_tokens,
            "cached_tokens": self.reply.cached_tokens,
            "reused_tokens": self.reply.reused_tokens,
            "error": self.reply.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How much load, for how long."""

    run_id: str
    arrivals: Arrivals
    concurrency: int = 64
    """Users of a closed loop; the most requests in flight of an open one."""
    requests: int | None = None
    duration_seconds: float | None = None
    warmup_seconds: float = 0.0
    """Requests due in the first seconds load the endpoint and are not counted."""
    cooldown_seconds: float = 0.0
    """Nor are those due in the last."""
    max_tokens: int = 32

    def __post_init__(self) -> None:
        if self.requests is None and self.duration_seconds is None:
            raise UsageError("--requests or --duration-seconds: at least one of the two expected")
        if self.concurrency < 1:
            raise UsageError(f"--concurrency: at least 1 expected, got {self.concurrency}")


async def run_load(
    client: EngineClient, items: Sequence[ManifestItem], options: LoadOptions
) -> AsyncIterator[SentRequest]:
    """Send the items' recipients, round and round, and yield each request when it is done."""
    if not items:
        raise UsageError("--manifest: no items to send")
    closed = options.arrivals.kind is ArrivalKind.CLOSED
    running: set[asyncio.Task[SentRequest]] = set()
    started = time.perf_counter()
    numbered = enumerate(zip(options.arrivals.offsets(), itertools.cycle(items), strict=False))
    try:
        for number, (offset, item) in numbered:
            if options.requests is not None and number >= options.requests:
                break
            elapsed = time.perf_counter() - started
            if options.duration_seconds is not None and max(offset, elapsed if closed else 0.0) >= (
                options.duration_seconds
            ):
                break
            if offset > elapsed:
                await asyncio.sleep(offset - elapsed)
            while len(running) >= options.concurrency:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
            due = time.perf_counter() - started if closed else offset
            running.add(asyncio.create_task(_send(client, item, number, due, started, options)))
        for finished in asyncio.as_completed(running):
            yield await finished
        running = set()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _send(
    client: EngineClient,
    item: ManifestItem,
    number: int,
    due: float,
    started: float,
    options: LoadOptions,
) -> SentRequest:
    name = RequestName(
        run_id=options.run_id, arm="single", item_id=item.item_id, role="load", position=number
    )
    lag = max(0.0, time.perf_counter() - started - due)
    reply = await client.complete(
        Prompt(request_id=str(name), text=item.recipient_prompt, max_tokens=options.max_tokens)
    )
    return SentRequest(item_id=item.item_id, due_s=due, lag_ms=lag * 1000.0, reply=reply)


def summarise_load(
    sent: Sequence[SentRequest], objective: Objective, options: LoadOptions
) -> dict[str, Any]:
    """The aggregate of a load run over its counted window.

    Goodput counts requests that were answered and met the objective, a second.
    """
    last = max((request.due_s for request in sent), default=0.0)
    counted = [
        request
        for request in sent
        if options.warmup_seconds <= request.due_s <= last - options.cooldown_seconds
    ]
    ends = [request.due_s + request.latency_ms / 1000.0 for request in counted]
    begins = [request.due_s for request in counted]
    seconds = max(ends) - min(begins) if counted else 0.0
    done = [request for request in counted if request.reply.ok]
    good = [request for request in counted if objective.met(request)]
    return {
        "requests_sent": len(sent),
        "requests_counted": len(counted),
        "completed": len(done),
        "failed": len(counted) - len(done),
        "window_seconds": seconds,
        "requests_per_second": len(done) / seconds if seconds else None,
        "output_tokens_per_second": sum(request.reply.output_tokens or 0 for request in done)
        / seconds
        if seconds
        else None,
        "goodput_requests_per_second": len(good) / seconds if seconds else None,
        "slo_attainment": len(good) / len(counted) if counted else None,
        "slo": {
            "ttft_ms": objective.ttft_ms,
            "tpot_ms": objective.tpot_ms,
            "latency_ms": objective.latency_ms,
        },
        "ttft_ms": _shape([request.ttft_ms for request in done]),
        "tpot_ms": _shape([request.tpot_ms for request in done]),
        "latency_ms": _shape([request.latency_ms for request in done]),
        "lag_ms": _shape([request.lag_ms for request in counted]),
    }


def _shape(values: Sequence[float | None]) -> dict[str, Any] | None:
    shape = statistics.distribution([value for value in values if value is not None])
    return None if shape is None else shape.to_dict()
