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


class Queue:
    """Prompts that wait in a toy engine; any plan takes the whole ration of a step."""

    def __init__(self) -> None:
        self.engine = ToyEngine(plan_seconds=1e-9)
        self.side = self.engine.scheduler
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


@pytest.fixture
def queue() -> Iterator[Queue]:
    made = Queue()
    made.donor("first", DOCUMENT)
    yield made
    made.engine.close()


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
