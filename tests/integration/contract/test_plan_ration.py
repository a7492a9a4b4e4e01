"""A long queue costs a step little, and whoever waits in it loses nothing by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from semblend.core.tokens import TokenArray
from semblend.integration.isolation import by_salt
from semblend.integration.scheduler.engine_planner import Offer
from semblend.integration.scheduler.orders import StepOrders
from semblend.integration.scheduler.plan_ration import MOST_SECONDS, STEP_SHARE, PlanRation
from semblend.integration.scheduler.port import Step
from tests.integration.contract.toy_engine import Job, ToyEngine
from tests.integration.models import random_tokens

WAITING = 12
DOCUMENT, OTHER = random_tokens(300, seed=1), random_tokens(300, seed=2)


class Clock:
    """Every look at it takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


class Queue:
    """Prompts that wait in a toy engine; any plan takes the whole ration of a step."""

    def __init__(self, step_seconds: float = 1.0) -> None:
        self.engine = ToyEngine()
        self.side = self.engine.scheduler
        self.clock, self._step_seconds = Clock(), step_seconds
        self.side._claims._ration = PlanRation(1e-9, clock=self.clock)
        self.jobs: list[Job] = []
        self.plans = 0
        self.engine.rewriting = self._count

    def _count(self, plan: Any, tokens: TokenArray) -> Any:
        self.plans += 1
        return plan

    def wait(self, *parts: TokenArray) -> None:
        """One more prompt waits: its own beginning and end, and these parts."""
        number = len(self.jobs)
        head, tail = random_tokens(40, seed=100 + number), random_tokens(24, seed=500 + number)
        job = Job(f"q{number}", np.concatenate((head, *parts, tail)), None, {}, [])
        self.jobs.append(job)
        self.side.arrived(job)

    def donor(self, name: str, tokens: TokenArray) -> None:
        """A donor is registered."""
        namespace = self.side.setup.namespace.with_parts(cache_salt=by_salt(None))
        self.side.planner.register(
            Offer(donor_id=name, request_id=name, tokens=tokens, namespace=namespace, blocks=1)
        )

    def step(self) -> list[int | None]:
        """The engine asks for everybody and takes nobody; the answers, and `plans` made."""
        self.plans = 0
        self.clock.now += self._step_seconds
        answers = [self.side.matched_tokens(job, 0) for job in self.jobs]
        self.side.fill(StepOrders(), Step(idle=True))
        return answers

    def settle(self) -> None:
        """Step until nobody is planned for any more."""
        for _ in range(3 * len(self.jobs)):
            self.step()
            if not self.plans:
                return
        raise AssertionError("plans are made for ever")


def queue_of_steps(seconds: float) -> Iterator[Queue]:
    made = Queue(seconds)
    made.donor("first", DOCUMENT)
    yield made
    made.engine.close()


@pytest.fixture
def queue() -> Iterator[Queue]:
    yield from queue_of_steps(1.0)


@pytest.fixture
def hurried() -> Iterator[Queue]:
    """An engine whose steps take no longer than a plan."""
    yield from queue_of_steps(1e-3)


def test_new_hits_get_their_plans_in_turn_one_ration_a_step(queue: Queue) -> None:
    for _ in range(WAITING):
        queue.wait(DOCUMENT)
    for planned in range(1, WAITING + 1):
        answers = queue.step()
        assert queue.plans == 1
        assert all(answers[:planned])
        assert answers[planned:] == [None] * (WAITING - planned)
    queue.step()
    assert queue.plans == 0


def test_misses_are_computed_at_once_however_many_wait(queue: Queue) -> None:
    for _ in range(WAITING):
        queue.wait(OTHER)
    assert queue.step() == [0] * WAITING


def test_a_new_donor_takes_nobodys_hit_and_reaches_everybody_in_turn(queue: Queue) -> None:
    for _ in range(WAITING):
        queue.wait(DOCUMENT, OTHER)
    queue.settle()
    before = queue.step()
    queue.donor("second", OTHER)
    for renewed in range(1, WAITING + 1):
        answers = queue.step()
        assert queue.plans == 1
        assert [more > less for more, less in zip(answers, before, strict=True)] == (
            [True] * renewed + [False] * (WAITING - renewed)
        )
        assert answers[renewed:] == before[renewed:]


def test_donors_that_come_with_every_step_take_a_share_of_the_time_and_of_nobody(
    hurried: Queue,
) -> None:
    for _ in range(WAITING):
        hurried.wait(DOCUMENT)
    hurried.settle()
    before, began, plans, steps = hurried.step(), hurried.clock.now, 0, 100
    for step in range(steps):
        hurried.donor(f"another {step}", random_tokens(100, seed=1_000 + step))
        assert hurried.step() == before
        assert hurried.plans <= 1
        plans += hurried.plans
    took = hurried.clock.now - began
    assert 0 < plans * 1e-3 <= STEP_SHARE * took + 2e-3


def test_the_first_donor_in_a_while_reaches_the_front_at_once_and_others_in_time(
    hurried: Queue,
) -> None:
    for _ in range(WAITING):
        hurried.wait(DOCUMENT, OTHER)
    hurried.settle()
    before = hurried.step()
    hurried.donor("second", OTHER)
    answers = hurried.step()
    assert answers[0] > before[0]
    assert answers[1:] == before[1:]
    for _ in range(40 * WAITING):
        answers = hurried.step()
    assert all(more > less for more, less in zip(answers, before, strict=True))


def test_a_plan_is_checked_for_its_donors_only_where_some_were_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(WAITING):
        queue.wait(DOCUMENT)
    queue.donor("another", OTHER)
    queue.settle()
    asked: list[Any] = []
    planner = queue.side.planner
    held = planner.still_held
    monkeypatch.setattr(planner, "still_held", lambda ids: asked.append(ids) or held(ids))
    queue.donor("third", random_tokens(100, seed=3))
    assert all(queue.step())
    assert not asked
    planner.drop("another")
    assert all(queue.step())
    assert len(asked) >= WAITING - 2
    asked.clear()
    assert all(queue.step())
    assert not asked, "once for a loss"


def test_a_miss_behind_hits_is_computed_though_donors_come_with_every_step(queue: Queue) -> None:
    for _ in range(WAITING):
        queue.wait(DOCUMENT)
    queue.wait(OTHER)
    for step in range(2 * WAITING):
        queue.donor(f"another {step}", random_tokens(100, seed=1_000 + step))
        if queue.step()[-1] == 0:
            return
    raise AssertionError("it waits for ever")


def test_a_plan_whose_donor_is_gone_ends_cold(queue: Queue) -> None:
    for _ in range(WAITING):
        queue.wait(DOCUMENT)
    queue.settle()
    queue.side.planner.drop("first")
    assert queue.step() == [0] * WAITING


def test_a_long_step_has_a_longer_ration_up_to_a_limit() -> None:
    now = 0.0

    def ration_after(seconds: float) -> float:
        nonlocal now
        ration = PlanRation(0.0015, clock=lambda: now)
        ration.next_step()
        now += seconds
        ration.step_done()
        ration.claimed()
        spent = 0.0
        while ration.asks():
            with ration.spending():
                now += 0.0005
            spent += 0.0005
        return spent

    assert ration_after(0.010) == pytest.approx(0.0015, abs=0.0006)
    assert ration_after(0.200) == pytest.approx(STEP_SHARE * 0.200, abs=0.0006)
    assert ration_after(5.0) == pytest.approx(MOST_SECONDS, abs=0.0006)
