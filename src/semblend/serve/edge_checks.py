"""The outermost layer: checks every request before anything in it is trusted.

In order: a request id, the Host header, the caller, the content type, then the body within
its size and time limits. Every answer gets security headers, and every failure inside
becomes an error in OpenAI's format.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semblend.serve.api_errors import ApiError, internal_error
from semblend.serve.auth import Authenticator
from semblend.serve.watch.json_logs import log

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

_PUBLIC = frozenset(
    {"/", "/docs", "/health", "/health/live", "/health/ready", "/openapi.json", "/favicon.ico"}
)

_WATCHED = _PUBLIC | {"/metrics", "/semblend/state"}
"""Routes that pages, probes and scrapers poll constantly."""

_SAID_ONCE = ("authorization", "x-tenant-id", "x-chat-template-id")
"""Headers that identify the caller. If one is sent twice, a proxy may have checked the other."""

_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
}


class EdgeOptions(Protocol):
    """A gate's settings."""

    @property
    def accepted_hosts(self) -> frozenset[str] | None:
        """Host names a request may be addressed to; None accepts any."""
        ...

    @property
    def max_bodies(self) -> int:
        """Maximum number of bodies held at a time."""
        ...

    @property
    def max_body_bytes(self) -> int:
        """Maximum body size."""
        ...

    @property
    def body_timeout_s(self) -> float:
        """How long a client may take to send its body."""
        ...

    @property
    def public_metrics(self) -> bool:
        """Whether /metrics is public."""
        ...


class ResponseCounter(Protocol):
    """Counts responses."""

    def responded(self, endpoint: str, status: int) -> None: ...


class EdgeChecks:
    """ASGI middleware that lets nothing unchecked reach a route."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        options: EdgeOptions,
        authenticator: Authenticator,
        metrics: ResponseCounter,
    ) -> None:
        self._app = app
        self._options = options
        self._hosts = options.accepted_hosts
        self._authenticator = authenticator
        self._metrics = metrics
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reply = _Reply(send, request_id=_request_id(headers.get("x-request-id")))
        scope.setdefault("state", {})["request_id"] = reply.request_id
        started = time.perf_counter()
        try:
            self._identify(scope, headers)
            if scope["method"] in {"POST", "PUT", "PATCH"}:
                await self._with_body(scope, headers, receive, reply.send)
            else:
                await self._app(scope, receive, reply.send)
        except ApiError as error:
            await reply.refuse(error, scope)
        except Exception as error:
            log("unhandled", level=logging.ERROR, error=error, request_id=reply.request_id)
            await reply.refuse(internal_error(), scope)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.responded(route, reply.status)
            quiet = route in _WATCHED and reply.status < 400
            log(
                "http",
                level=logging.DEBUG if quiet else logging.INFO,
                request_id=reply.request_id,
                method=scope["method"] if scope["method"].isalpha() else "?",
                route=route,
                status=reply.status,
                ms=round((time.perf_counter() - started) * 1000.0, 3),
            )

    def _identify(self, scope: Scope, headers: Headers) -> None:
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            raise ApiError(
                421,
                "host: this server does not accept that name; allow it with --allow-host",
                param="host",
                code="host_not_allowed",
            )
        path = scope["path"]
        public = path in _PUBLIC or (path == "/metrics" and self._options.public_metrics)
        if not public:
            for name in _SAID_ONCE:
                if len(headers.getlist(name)) > 1:
                    raise ApiError(
                        400,
                        f"{name}: sent more than once; expected one value",
                        param=name,
                        code="repeated_header",
                    )
            scope["state"]["caller"] = self._authenticator.identify(headers)

    async def _with_body(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send
    ) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # This also keeps other sites' pages out: a browser may post JSON only after a
            # preflight that we never allow.
            raise ApiError(
                415,
                "content-type: expected application/json",
                param="content-type",
                code="unsupported_media_type",
            )
        if self._bodies >= self._options.max_bodies:
            raise ApiError(
                503, "the server is full; try again", code="server_overloaded", retry_after_s=1
            )
        self._bodies += 1
        try:
            body = await self._body(headers, receive)
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._bodies -= 1

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._options.max_body_bytes
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._options.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(499, "the client disconnected", code="client_disconnected")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._options.body_timeout_s:g} seconds",
                code="body_timeout",
            ) from None


class _Reply:
    """The sending side of one request: headers, status, and whether it has begun."""

    def __init__(self, send: Send, *, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def refuse(self, error: ApiError, scope: Scope) -> None:
        """Answer with `error`, unless an answer has already begun."""
        if self.begun:
            return
        response = error.response()
        if error.status in {408, 413}:
            response.headers["connection"] = "close"
        await response(scope, _nothing, self.send)


def _request_id(given: str | None) -> str:
    """The caller's id if it is safe to log and echo, otherwise a new one."""
    return given if given and REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _host(value: str) -> str:
    """The name in a Host header, without the port."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive function that returns the body once, then whatever the client sends next."""
    pending: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"body: expected at most {limit} bytes", code="body_too_large")
