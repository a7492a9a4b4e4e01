"""Stops work when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from semblend.serve.api_errors import ApiError

Result = TypeVar("Result")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`; cancel it if the client disconnects first.

    Raises
    ------
    ApiError
        499 if the client disconnected. Nobody reads it, but the log records it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client disconnected", code="client_disconnected")
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
