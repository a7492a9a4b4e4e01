"""What all HTTP clients share.

A client turns one prompt into one :class:`Reply`. Any failure (refused, timed out, cut
off, malformed) becomes the reply's `error`, and the run continues.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from sembench.clock import current_clock
from sembench.errors import EndpointError
from sembench.live.identity import ROUTE_HEADERS, WORKER_HEADERS, RequestIdentity
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply
from sembench.live.stream import StreamError, TimedEvent, arrivals, http_error

CONNECT_SECONDS = 10.0
CONTROL_PAUSES_SECONDS = (0.05, 0.2, 0.5, 1.0)
_FINAL_STATUS = frozenset({401, 403, 404, 405, 501})
_MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading a field raises if a server's event does not follow its protocol."""


class Reader(Protocol):
    """Builds a reply from a protocol's events."""

    def take(self, data: dict[str, Any]) -> bool:
        """Read one event; return whether it had content."""
        ...

    def reply(self, request_id: str) -> Reply:
        """The reply so far. The client fills in times and headers."""
        ...


class StreamingClient(ABC):
    """Posts a body, reads its stream and takes the times; protocols subclass it."""

    def __init__(
        self,
        *,
        base_url: str,
        caller: RequestIdentity,
        timeout_seconds: float,
        connections: int = 64,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._caller = caller
        self._clock = current_clock()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            # Reach the endpoint under test directly, never through the shell's proxy.
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(self, prompt: Prompt) -> Reply:
        reader = self.reader()
        path, body = self.body(prompt)
        headers = self._caller.headers(prompt.request_id)
        arrived: list[float] = []
        error: str | None = None
        response_headers = httpx.Headers()
        started = self._clock.now()
        try:
            async with self._http.stream(
                "POST", self.base_url + path, json=body, headers=headers
            ) as response:
                response_headers = response.headers
                if response.status_code != 200:
                    error = http_error(response.status_code, await response.aread())
                else:
                    await self._read(response, reader, arrived)
        except StreamError as problem:
            error = str(problem)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            error = f"{type(problem).__name__}: {problem}".rstrip(": ")
        latency = (self._clock.now() - started) * 1000.0
        try:
            reply = reader.reply(prompt.request_id)
        except _MISSHAPEN as problem:
            reply, error = Reply(request_id=prompt.request_id), error or _misshapen(problem)
        if error is None and not arrived:
            error = "the answer has no content"
        return _with_headers(
            replace(
                reply,
                ttft_ms=(arrived[0] - started) * 1000.0 if arrived else None,
                latency_ms=latency,
                gaps_ms=tuple((b - a) * 1000.0 for a, b in itertools.pairwise(arrived)),
                error=error,
            ),
            response_headers,
        )

    async def _read(self, response: httpx.Response, reader: Reader, arrived: list[float]) -> None:
        """Read the stream; `arrived` gets the times of events with content."""
        arrival: TimedEvent
        async for arrival in arrivals(response, self._clock):
            try:
                has_content = reader.take(arrival.data)
            except _MISSHAPEN as problem:
                raise StreamError(_misshapen(problem)) from problem
            if has_content:
                arrived.append(arrival.at)

    async def post(self, path: str) -> httpx.Response:
        """Post an empty body to a control path.

        An engine still finishing a request refuses to empty its cache (SGLang: HTTP 400),
        so a refusal is retried for a moment.

        Raises
        ------
        EndpointError
            If the endpoint cannot be reached, or keeps refusing.
        """
        url = path if "://" in path else self.base_url + path
        for pause in (*CONTROL_PAUSES_SECONDS, None):
            try:
                response = await self._http.post(url)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EndpointError(f"POST {url}: {type(error).__name__} {error}") from error
            if response.status_code < 400:
                return response
            if pause is None or response.status_code in _FINAL_STATUS:
                break
            await asyncio.sleep(pause)
        raise EndpointError(f"POST {url}: {http_error(response.status_code, response.content)}")

    @abstractmethod
    def reader(self) -> Reader:
        """A reader for one stream."""

    @abstractmethod
    def body(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """The path and body of the request for `prompt`."""


def _misshapen(problem: Exception) -> str:
    return f"stream event is not shaped as expected ({type(problem).__name__}: {problem})"


def _with_headers(reply: Reply, headers: httpx.Headers) -> Reply:
    def first(names: tuple[str, ...]) -> str | None:
        return next((headers[name] for name in names if name in headers), None)

    return replace(
        reply,
        route=first(ROUTE_HEADERS),
        worker_id=reply.worker_id or first(WORKER_HEADERS),
        engine_request_id=reply.engine_request_id or headers.get("x-request-id"),
    )
