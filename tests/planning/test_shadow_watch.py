"""A watch over any number of namespaces is bounded, and forgets in the safe direction only."""

from __future__ import annotations

import pytest

from semblend.planning.shadow_watch import ShadowWatch

ROOM = 8


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def sample(watch: ShadowWatch, number: int, disagreement: float) -> str | None:
    return watch.observe(name(number), divergence=disagreement, disagreement=disagreement)


@pytest.fixture
def watch() -> ShadowWatch:
    return ShadowWatch(max_namespaces=ROOM)


def test_a_salt_for_every_conversation_takes_no_more_room(watch: ShadowWatch) -> None:
    for number in range(50 * ROOM):
        assert sample(watch, number, float(number % 3 == 0)) is None
        assert len(watch._tests) <= ROOM
    assert watch.stats().samples == 50 * ROOM


def test_evidence_against_reuse_outlives_any_number_of_harmless_namespaces(
    watch: ShadowWatch,
) -> None:
    alone = ShadowWatch()
    needed = next(n for n in range(1, 100) if sample(alone, 0, 1.0))
    assert needed > 1
    for _ in range(needed - 1):
        assert sample(watch, 0, 1.0) is None
    for number in range(1, 20 * ROOM):
        sample(watch, number, 0.0)
    assert sample(watch, 0, 1.0) is not None, "as if nobody else had been there"
    assert watch.objection(name(0)) is not None


def test_reuse_that_was_turned_off_stays_off(watch: ShadowWatch) -> None:
    watch.suspend(name(0), "evidence")
    for number in range(1, 20 * ROOM):
        sample(watch, number, 0.0)
        watch.resume(name(number))
    assert watch.objection(name(0)) == "evidence"


def test_more_than_can_be_remembered_turns_reuse_off_in_all(watch: ShadowWatch) -> None:
    for number in range(ROOM):
        watch.suspend(name(number), "evidence")
        assert watch.objection(name(-1 % 2**64)) is None
    watch.suspend(name(ROOM - 1), "again")
    assert watch.objection(name(-1 % 2**64)) is None, "a namespace counts once"
    for number in range(ROOM, 3 * ROOM):
        watch.suspend(name(number), "one too many")
        assert watch.stats().suspended == ROOM
    everybody = [*range(3 * ROOM), 2**64]
    assert all(watch.objection(name(number)) for number in everybody)
    assert watch.objection(None) is None
    assert watch.resume(name(2 * ROOM)) == 0
    assert watch.objection(name(2 * ROOM)) is not None, "nobody knows which ones were fine"
    assert watch.resume() == ROOM
    assert not any(watch.objection(name(number)) for number in everybody)


def test_a_namespace_turned_on_again_starts_without_its_old_evidence(watch: ShadowWatch) -> None:
    while sample(watch, 0, 1.0) is None:
        pass
    assert watch.resume(name(0)) == 1
    assert sample(watch, 0, 1.0) is None
