"""Server-sent events over httpx, each with its arrival time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from sembench.clock import Clock
from sembench.json_text import parse_json

DONE = "[DONE]"


class StreamError(Exception):
    """A stream broke its protocol; becomes the reply's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """One event and its arrival time."""

    data: dict[str, Any]
    at: float


async def arrivals(response: httpx.Response, clock: Clock) -> AsyncIterator[TimedEvent]:
    """The JSON events of a stream.

    Raises
    ------
    StreamError
        On an event that is not a JSON object, an error the server reports in the
        stream, or a stream that ends early.
    """
    async for line in response.aiter_lines():
        at = clock.now()
        if not line.startswith("data:"):
            continue
        payload = line[len("data:") :].strip()
        if payload == DONE:
            return
        try:
            data = parse_json(payload)
        except ValueError as error:
            raise StreamError(f"stream event is not JSON: {payload[:80]!r}") from error
        if not isinstance(data, dict):
            raise StreamError(f"stream event is not an object: {payload[:80]!r}")
        if problem := data.get("error"):
            raise StreamError(f"server reports: {_message(problem)}")
        yield TimedEvent(data=data, at=at)
    raise StreamError("stream ended without its end mark")


def http_error(status: int, body: bytes) -> str:
    """A refused request, described in one line."""
    text = body.decode("utf-8", errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        text = _message(parse_json(text).get("error", text))
    return f"HTTP {status}: {text.strip()[:200]}"


def _message(problem: Any) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)
