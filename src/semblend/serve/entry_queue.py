"""Decides which requests enter the engine, wait, or are refused with a retry time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from semblend.serve.api_errors import ApiError
from semblend.serve.options import ServeOptions

_MAX_BUCKETS = 4096


@dataclass(slots=True, eq=False)
class Ticket:
    """A slot in the engine; released exactly once."""

    tenant: str | None
    _queue: EntryQueue
    cancel: Callable[[], None] | None = None
    """Stops what runs on this ticket."""
    released: bool = False

    def release(self) -> None:
        """Give the slot to the next in line."""
        if not self.released:
            self.released = True
            self._queue._leave(self)


@dataclass(slots=True, eq=False)
class _Waiter:
    tenant: str | None
    turn: asyncio.Future[Ticket] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class EntryQueue:
    """Limits running and waiting requests. Used on one event loop; no locks.

    A freed slot goes to the waiting tenant with the fewest running requests, then to the
    longest waiting, so that one tenant's burst does not starve another.
    """

    def __init__(
        self, options: ServeOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._clock = clock
        self._inside: set[Ticket] = set()
        self._waiting: list[_Waiter] = []
        self._by_tenant: Counter[str | None] = Counter()
        self._buckets: OrderedDict[str | None, tuple[float, float]] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def inside(self) -> int:
        """Requests in the engine."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Requests waiting for a slot."""
        return len(self._waiting)

    async def enter(self, tenant: str | None) -> Ticket:
        """Get a ticket, at once or after a wait.

        Raises
        ------
        ApiError
            429 for a tenant over its own limits, 503 for a full or stopping server.
        """
        if self.draining:
            raise _stopping()
        self._take_from_bucket(tenant)
        mine = self._by_tenant[tenant] + sum(w.tenant == tenant for w in self._waiting)
        limit = self._options.max_concurrent_per_tenant
        if limit and mine >= limit:
            raise ApiError(
                429,
                f"you may have at most {limit} requests at a time; wait for one to finish",
                code="too_many_concurrent_requests",
                retry_after_s=1,
            )
        if len(self._inside) < self._options.max_concurrent:
            return self._admit(tenant)
        if len(self._waiting) >= self._options.max_queued:
            raise _full()
        return await self._wait(tenant)

    async def drain(self, timeout_s: float) -> bool:
        """Admit nobody else and wait for running requests; return whether all finished in time."""
        self.draining = True
        for waiter in self._waiting:
            if not waiter.turn.done():
                waiter.turn.set_exception(_stopping())
        self._waiting.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def cancel_all(self) -> None:
        for ticket in tuple(self._inside):
            if ticket.cancel is not None:
                ticket.cancel()

    async def _wait(self, tenant: str | None) -> Ticket:
        waiter = _Waiter(tenant)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._options.queue_timeout_s):
                return await waiter.turn
        except TimeoutError:
            self._give_up(waiter)
            raise _full() from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.turn.done() and not waiter.turn.cancelled() and not waiter.turn.exception():
            # It got a slot in the very moment it gave up: pass the slot on.
            waiter.turn.result().release()

    def _admit(self, tenant: str | None) -> Ticket:
        ticket = Ticket(tenant, self)
        self._inside.add(ticket)
        self._by_tenant[tenant] += 1
        self._idle.clear()
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        self._inside.discard(ticket)
        self._by_tenant[ticket.tenant] -= 1
        if not self._by_tenant[ticket.tenant]:
            del self._by_tenant[ticket.tenant]
        patient = [waiter for waiter in self._waiting if not waiter.turn.done()]
        if patient:
            waiter = min(patient, key=lambda w: self._by_tenant[w.tenant])
            self._waiting.remove(waiter)
            waiter.turn.set_result(self._admit(waiter.tenant))
        if not self._inside:
            self._idle.set()

    def _take_from_bucket(self, tenant: str | None) -> None:
        """One token bucket per tenant: a minute's requests at once, then an even rate."""
        per_minute = self._options.requests_per_minute
        if not per_minute:
            return
        now = self._clock()
        level, seen = self._buckets.pop(tenant, (float(per_minute), now))
        level = min(float(per_minute), level + (now - seen) * per_minute / 60.0)
        allowed = level >= 1.0
        self._buckets[tenant] = (level - 1.0 if allowed else level, now)
        while len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ApiError(
                429,
                f"you may send at most {per_minute} requests per minute",
                code="rate_limit_exceeded",
                retry_after_s=max(1, math.ceil((1.0 - level) * 60.0 / per_minute)),
            )


def _full() -> ApiError:
    return ApiError(503, "the server is full; try again", code="server_overloaded", retry_after_s=1)


def _stopping() -> ApiError:
    return ApiError(
        503, "the server is shutting down; try again", code="server_stopping", retry_after_s=5
    )
