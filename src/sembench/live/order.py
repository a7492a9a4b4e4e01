"""The order in which the requests of many items are sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sembench.model import ManifestItem
from sembench.results import RequestRow

Numbered = tuple[int, ManifestItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """Serve an item's donors, or its recipient (with the actual gap between them)."""

    position: int
    item: ManifestItem
    donor_gap_requests: int | None = None


def spaced(items: Iterable[Numbered], gap: int) -> Iterator[ReplayStep]:
    """Interleave donors and recipients so that `gap` requests separate those of an item.

    The requests in between belong to other items. The last items have fewer left, so each
    recipient's step records how many there really were.
    """
    waiting: deque[tuple[Numbered, int]] = deque()
    sent = 0
    for position, item in items:
        yield ReplayStep(position=position, item=item)
        sent += len(item.donor_prompts)
        waiting.append(((position, item), sent))
        while waiting and sent - waiting[0][1] >= gap:
            (number, ready), after_donors = waiting.popleft()
            yield ReplayStep(position=number, item=ready, donor_gap_requests=sent - after_donors)
            sent += 1
    for (number, ready), after_donors in waiting:
        yield ReplayStep(position=number, item=ready, donor_gap_requests=sent - after_donors)
        sent += 1


async def concurrently(
    items: Iterable[Numbered],
    play: Callable[[ManifestItem, int], Coroutine[Any, Any, RequestRow]],
    *,
    limit: int,
) -> AsyncIterator[RequestRow]:
    """Yield rows as they finish, with at most `limit` items in flight."""
    source = iter(items)
    running: set[asyncio.Task[RequestRow]] = set()
    try:
        while True:
            while len(running) < limit and (numbered := next(source, None)) is not None:
                position, item = numbered
                running.add(asyncio.create_task(play(item, position)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
