"""A request's reuse goes one way: what cannot have happened is refused, what happened is kept."""

from __future__ import annotations

import pytest

from semblend.core.account import Accounts
from semblend.core.ledger import Ledger
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan, Span
from semblend.integration.scheduler.request import Arrival, IllegalStepError, Request, Stage
from tests.integration.models import random_tokens

TOKENS = random_tokens(100, seed=31)
PLAN = Plan(
    namespace="n",
    prompt_tokens=100,
    end=80,
    spans=(Span(donor_id="d", donor_start=7, target_start=20, length=60),),
)


def request(ladder_id=None):
    arrival = Arrival(
        request_id="r",
        handle=None,
        tokens=TOKENS,
        namespace=Namespace.of(model="m"),
        ladder_id=ladder_id,
    )
    accounts = Accounts(ledger=Ledger())
    return Request(arrival, accounts.open("r", prompt_tokens=100))


def loading(**options):
    made = request(**options)
    made.make_claim(PLAN)
    made.admitted()
    return made


STEPS = {
    "make_claim": lambda made: made.make_claim(PLAN),
    "admitted": lambda made: made.admitted(),
    "loaded": lambda made: made.loaded(),
    "failed": lambda made: made.failed(),
    "released": lambda made: made.released(),
}
ALLOWED = {
    Stage.SEEN: {"make_claim", "failed", "released"},
    Stage.CLAIMED: {"admitted", "failed", "released"},
    Stage.LOADING: {"loaded", "failed", "released"},
    Stage.LOADED: {"make_claim", "failed", "released"},
    Stage.FAILED: {"failed", "released"},
    Stage.ENDED: set(),
}


def at(stage):
    made = request()
    if stage in (Stage.CLAIMED, Stage.LOADING, Stage.LOADED):
        made.make_claim(PLAN)
    if stage in (Stage.LOADING, Stage.LOADED):
        made.admitted()
    if stage is Stage.LOADED:
        made.loaded()
    if stage is Stage.FAILED:
        made.failed()
    if stage is Stage.ENDED:
        made.ended()
    assert made.stage is stage
    return made


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("step", STEPS)
def test_only_steps_that_make_sense_are_taken(stage, step):
    made = at(stage)
    if step in ALLOWED[stage]:
        STEPS[step](made)
        return
    with pytest.raises(IllegalStepError, match="cannot"):
        STEPS[step](made)
    assert made.stage is stage


def test_a_claim_that_was_not_taken_leaves_no_trace():
    made = request()
    made.make_claim(PLAN)
    made.withdraw()
    assert (made.stage, made.claim, made.tainted) == (Stage.SEEN, None, False)
    made = loading()
    made.loaded()
    made.make_claim(PLAN)
    made.withdraw()
    assert made.stage is Stage.LOADED, "it goes on as it was"


def test_what_is_loaded_is_tainted_and_a_first_load_that_failed_is_not():
    made = loading()
    assert made.tainted
    made.failed()
    assert not made.tainted
    again = loading()
    again.loaded()
    again.make_claim(PLAN)
    again.admitted()
    again.failed()
    assert again.tainted, "the first load left its traces"
    rung = loading(ladder_id="l")
    rung.failed()
    assert rung.tainted, "other rungs were loaded"


def test_only_a_confirmed_load_is_reported_as_reuse():
    made = loading()
    assert made.report(certified=False)["reused_tokens"] == 0
    made.loaded(40)
    said = made.report(certified=False)
    assert (said["reused_tokens"], said["recomputed_tokens"]) == (40, 20)
    made.released()
    assert made.report(certified=False)["reused_tokens"] == 0
    assert made.tainted


def test_a_capture_is_decided_once():
    made = request()
    assert [made.decide_capture(), made.decide_capture()] == [True, False]
