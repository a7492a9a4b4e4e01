"""Engines that load when they admit: what is claimed, what waits, and what is never loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from semblend.core.errors import CapacityError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.provider import DonorsLostError, SemBlendProvider
from semblend.integration.scheduler.admissions import Admissions
from semblend.integration.scheduler.request import Arrival, Request, Stage
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.stats import Stats

DOCUMENT = list(range(1000, 1500))
PROMPT = [9] * 40 + DOCUMENT + [7] * 8
SETTINGS = Settings(embedder="none", allow_uncertified=True, recompute_policy="none")


@dataclass
class Waiting:
    tokens: TokenArray
    losses: int = 0


class Engine:
    """The adapter's part of an engine, and how its requests are asked about."""

    def __init__(self, *, hole_budget: int = 4096) -> None:
        self.provider = SemBlendProvider(Namespace.of(model="m"), SETTINGS)
        self.stats = Stats()
        audit = AuditStream(engine="toy", logger=logging.getLogger("toy"))
        ledger = self.provider.pipeline.ledger
        self.settlements = Settlements(ledger=ledger, audit=audit, stats=self.stats)
        self.admissions = Admissions(
            engine="toy",
            provider=self.provider,
            settlements=self.settlements,
            audit=audit,
            stats=self.stats,
            hole_budget=hole_budget,
            failures_before_off=2,
            standing="experimental",
        )

    def donate(self, name: str = "a") -> None:
        assert self.provider.register_donor([1, 2, *DOCUMENT], request_id=name) is not None

    def arrived(self, name: str = "r", **asked) -> Request[Waiting]:
        tokens = as_token_array(PROMPT)
        arrival = Arrival(
            request_id=name,
            handle=Waiting(tokens),
            tokens=tokens,
            namespace=self.provider.namespace_of(None, None),
            **asked,
        )
        return Request(arrival, self.settlements.accounts.open(name, prompt_tokens=len(tokens)))

    def claim(self, request: Request[Waiting], *, may_load: bool = True) -> Plan | None:
        return self.admissions.claim(request, PROMPT, 0, most=len(PROMPT) - 1, may_load=may_load)

    def reason(self, request: Request[Waiting]) -> DeclineReason | None:
        self.admissions.ended(request)
        settlement = request.account.settlement
        assert settlement is not None
        assert settlement.outcome is not Outcome.MATERIALISED
        assert self.provider.pipeline.ledger.totals().open_requests == 0
        return settlement.reason


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.provider.close()


def carry_out(plan: Plan) -> None:
    """Everything goes well."""


def broken(plan: Plan) -> None:
    raise ValueError("not one of ours")


def test_what_is_claimed_is_loaded_whole_and_taints_the_request(engine):
    engine.donate()
    request = engine.arrived()
    plan = engine.claim(request)
    assert plan is not None
    assert engine.admissions.load(request, carry_out) == plan.end - plan.exact_tokens
    assert (request.stage, request.tainted) == (Stage.LOADING, True)
    assert engine.admissions.awaits_forward
    assert engine.reason(request) is DeclineReason.CANCELLED, "nobody confirmed it"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"refusal": "lora"}, DeclineReason.UNSUPPORTED),
        ({"may_reuse": False}, DeclineReason.DISABLED),
    ],
)
def test_requests_that_may_not_reuse_claim_nothing(engine, asked, reason):
    engine.donate()
    request = engine.arrived(**asked)
    assert engine.claim(request) is None
    assert engine.admissions.load(request, carry_out) == 0
    assert engine.reason(request) is reason


def test_nothing_is_claimed_where_nothing_could_be_loaded(engine):
    engine.donate()
    request = engine.arrived()
    assert engine.claim(request, may_load=False) is None
    assert engine.reason(request) is DeclineReason.DISABLED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CapacityError("full"), DeclineReason.NO_CAPACITY),
        (ValueError("not one of ours"), DeclineReason.MATERIALISATION_FAILED),
    ],
)
def test_a_load_that_raises_is_cold_and_is_not_tried_again(engine, error, reason):
    engine.donate()
    request = engine.arrived()
    assert engine.claim(request) is not None

    def raising(plan: Plan) -> None:
        raise error

    assert engine.admissions.load(request, raising) == 0
    assert not request.tainted
    assert engine.claim(request) is None
    assert engine.reason(request) is reason


def test_failures_in_a_row_end_loading_and_a_good_step_between_them_does_not(engine):
    engine.donate()

    def fails(name: str) -> None:
        request = engine.arrived(name)
        assert engine.claim(request) is not None
        assert engine.admissions.load(request, broken) == 0

    fails("one")
    engine.admissions.ran(well=True)
    fails("two")
    assert engine.admissions.works
    fails("three")
    assert not engine.admissions.works
    request = engine.arrived("four")
    assert engine.claim(request) is None


def test_lost_donors_are_forgotten_and_the_request_is_asked_again(engine):
    engine.donate()
    request = engine.arrived()
    plan = engine.claim(request)

    def lost(plan: Plan) -> None:
        raise DonorsLostError(plan.donor_ids, "gone")

    assert engine.admissions.load(request, lost) is None
    assert engine.provider.donor(plan.donor_ids[0]) is None
    assert engine.claim(request) is None
    assert engine.reason(request) is DeclineReason.NO_MATCH
    assert engine.stats.data["counts"] == {"donors_lost": 1, "waits": 1}


def test_donors_that_are_lost_again_and_again_are_given_up(engine):
    request = engine.arrived()

    def lost(plan: Plan) -> None:
        raise DonorsLostError(plan.donor_ids, "gone")

    answers = []
    for name in ("a", "b", "c"):
        engine.donate(name)
        engine.admissions.next_step()
        assert engine.claim(request) is not None
        answers.append(engine.admissions.load(request, lost))
    assert answers == [None, None, 0]
    assert engine.reason(request) is DeclineReason.DONOR_GONE


def test_holes_of_a_step_stay_within_their_budget():
    engine = Engine(hole_budget=50)  # 40 tokens lie before the document
    engine.donate()
    first, second = engine.arrived("one"), engine.arrived("two")
    assert engine.claim(first) is not None
    assert engine.claim(second) is not None
    assert engine.admissions.load(first, carry_out)
    assert engine.admissions.load(second, carry_out) is None, "it waits for the next step"
    engine.admissions.no_longer_waits(first)
    assert engine.claim(second) is not None
    assert engine.admissions.load(second, carry_out)
    engine.provider.close()


def test_a_waiting_queue_is_planned_again_only_within_a_ration(engine):
    waiting = [engine.arrived(f"r{n}") for n in range(30)]
    for request in waiting:
        assert engine.claim(request) is None
    engine.donate()
    claimed = [engine.claim(request) for request in waiting]
    assert sum(plan is not None for plan in claimed) == 8
    engine.admissions.next_step()
    claimed = [engine.claim(request) for request in waiting]
    assert sum(plan is not None for plan in claimed) == 16
