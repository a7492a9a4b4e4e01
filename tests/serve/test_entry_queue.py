"""Promises: never more inside than allowed, no place is lost, nobody starves, all are told when."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.serve.api_errors import ApiError
from semblend.serve.entry_queue import EntryQueue, Ticket
from semblend.serve.options import ServeOptions


def queue_with(**limits: Any) -> EntryQueue:
    return EntryQueue(ServeOptions(model_name="m", **limits))


def test_a_full_server_says_so_and_when_to_come_back() -> None:
    async def run() -> None:
        entry_queue = queue_with(max_concurrent=1, max_queued=0)
        ticket = await entry_queue.enter("a")
        with pytest.raises(ApiError) as caught:
            await entry_queue.enter("b")
        assert caught.value.status == 503
        assert caught.value.headers()["retry-after"] == "1"
        ticket.release()
        (await entry_queue.enter("b")).release()

    asyncio.run(run())


def test_waiting_ends_after_its_time() -> None:
    async def run() -> None:
        entry_queue = queue_with(max_concurrent=1, queue_timeout_s=0.01)
        ticket = await entry_queue.enter("a")
        with pytest.raises(ApiError, match="full"):
            await entry_queue.enter("b")
        assert entry_queue.waiting == 0
        ticket.release()
        assert entry_queue.inside == 0

    asyncio.run(run())


def test_one_tenants_limit_is_its_own() -> None:
    async def run() -> None:
        entry_queue = queue_with(max_concurrent=4, max_concurrent_per_tenant=2)
        inside = [await entry_queue.enter("a"), await entry_queue.enter("a")]
        with pytest.raises(ApiError) as caught:
            await entry_queue.enter("a")
        assert caught.value.status == 429
        inside.append(await entry_queue.enter("b"))
        for ticket in inside:
            ticket.release()
        (await entry_queue.enter("a")).release()

    asyncio.run(run())


def test_a_burst_of_one_tenant_does_not_starve_another() -> None:
    async def run() -> None:
        entry_queue = queue_with(max_concurrent=2, max_queued=10)
        inside = [await entry_queue.enter("greedy"), await entry_queue.enter("greedy")]
        order: list[str] = []

        async def come(tenant: str) -> None:
            ticket = await entry_queue.enter(tenant)
            order.append(tenant)
            ticket.release()

        async with asyncio.TaskGroup() as group:
            for tenant in ("greedy", "greedy", "greedy", "modest"):
                group.create_task(come(tenant))
                await asyncio.sleep(0)
            inside.pop().release()
        assert order[0] == "modest"
        inside.pop().release()

    asyncio.run(run())


def test_the_rate_limit_refills_evenly_and_says_when() -> None:
    now = 1000.0
    entry_queue = EntryQueue(ServeOptions(model_name="m", requests_per_minute=6), clock=lambda: now)

    async def enter() -> None:
        (await entry_queue.enter("a")).release()

    async def run() -> None:
        nonlocal now
        for _ in range(6):
            await enter()
        with pytest.raises(ApiError) as caught:
            await enter()
        assert caught.value.status == 429
        assert caught.value.retry_after_s == 10
        (await entry_queue.enter("b")).release()
        now += 10
        await enter()
        with pytest.raises(ApiError):
            await enter()

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    places=st.integers(1, 3),
    queue=st.integers(0, 4),
    requests=st.integers(1, 25),
)
def test_no_place_is_lost_and_never_too_many_are_inside(
    seed: int, places: int, queue: int, requests: int
) -> None:
    """Whatever mixture of finishing, giving up and being refused: all places come back."""
    rng = random.Random(seed)

    async def run() -> None:
        entry_queue = queue_with(max_concurrent=places, max_queued=queue, queue_timeout_s=0.002)
        most = 0

        async def request(tenant: str) -> None:
            nonlocal most
            with contextlib.suppress(ApiError):
                ticket: Ticket = await entry_queue.enter(tenant)
                most = max(most, entry_queue.inside)
                try:
                    await asyncio.sleep(rng.choice((0, 0, 0.001, 0.004)))
                finally:
                    ticket.release()
                    ticket.release()

        tasks = []
        for _ in range(requests):
            tasks.append(asyncio.create_task(request(rng.choice("abc"))))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= places
        assert (entry_queue.inside, entry_queue.waiting) == (0, 0)
        for ticket in [await entry_queue.enter("z") for _ in range(places)]:
            ticket.release()
        assert await entry_queue.drain(0.1)

    asyncio.run(run())


def test_draining_refuses_newcomers_and_those_who_wait() -> None:
    async def run() -> None:
        entry_queue = queue_with(max_concurrent=1)
        ticket = await entry_queue.enter("a")
        waiting = asyncio.create_task(entry_queue.enter("b"))
        await asyncio.sleep(0)
        assert not await entry_queue.drain(0.01)
        with pytest.raises(ApiError, match="shutting down"):
            await waiting
        with pytest.raises(ApiError, match="shutting down"):
            await entry_queue.enter("c")
        ticket.release()
        assert await entry_queue.drain(0.01)

    asyncio.run(run())
