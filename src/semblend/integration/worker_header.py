"""Puts a worker's name on its answers, so that a client of a router learns who answered.

Plain ASGI, for any server: `semblend serve` and `semblend-sglang` add it themselves; vLLM
takes it with `--middleware semblend.integration.worker_header.WorkerHeader`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

HEADER = "x-semblend-worker"
VARIABLE = "SEMBLEND_WORKER_ID"

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Any, Send], Awaitable[None]]


class WorkerHeader:
    """Adds the header to every answer, if there is a name."""

    def __init__(self, app: Application, worker_id: str | None = None) -> None:
        """The name defaults to SEMBLEND_WORKER_ID."""
        self._app = app
        name = os.environ.get(VARIABLE, "") if worker_id is None else worker_id
        self._header = (HEADER.encode(), name.encode("latin-1", "replace")) if name else None

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if self._header is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = self._header

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, named)
