"""What a device still reads is kept, in order, and let go of once it has."""

from __future__ import annotations

import weakref

from semblend.kv.in_flight import InFlight


class Event:
    """Passes when it is told to."""

    passed = False

    def query(self) -> bool:
        return self.passed


class Thing:
    """Something that can be watched going."""


def test_things_stay_until_their_event_has_passed_and_those_before_it() -> None:
    held, events, calls = InFlight(), [Event(), Event()], []
    things = [Thing(), Thing()]
    watched = [weakref.ref(thing) for thing in things]
    for number, (event, thing) in enumerate(zip(events, things, strict=True)):
        held.hold(event, thing, then=lambda number=number: calls.append(number))
    del thing, things
    events[1].passed = True
    held.sweep()
    assert len(held) == 2
    assert all(watch() is not None for watch in watched)
    events[0].passed = True
    held.sweep()
    assert calls == [0, 1]
    assert len(held) == 0
    assert all(watch() is None for watch in watched)


def test_whoever_is_called_may_hold_something_again() -> None:
    held, first, second = InFlight(), Event(), Event()
    held.hold(first, None, then=lambda: held.hold(second, None))
    first.passed = True
    held.sweep()
    assert len(held) == 1
