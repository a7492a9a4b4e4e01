"""Clocks: a virtual one moves only with simulated work, and only where it was asked for."""

from __future__ import annotations

import asyncio

from sembench.clock import MachineClock, current_clock, use_clock
from tests.sembench.virtual_clock import VirtualClock


def test_a_virtual_clock_moves_by_what_was_slept_and_nothing_else() -> None:
    clock = VirtualClock()

    async def work() -> None:
        await asyncio.gather(clock.sleep(1.5), clock.sleep(0.25))

    asyncio.run(work())
    assert clock.now() == 1.75


def test_the_machines_clock_is_used_unless_told_otherwise() -> None:
    assert isinstance(current_clock(), MachineClock)
    with use_clock(VirtualClock()) as clock:
        assert current_clock() is clock

        async def inside() -> bool:
            return current_clock() is clock

        assert asyncio.run(inside())
    assert isinstance(current_clock(), MachineClock)


def test_the_machines_clock_really_passes() -> None:
    clock = MachineClock()
    before = clock.now()
    asyncio.run(clock.sleep(0.01))
    assert clock.now() > before
