"""Reuse is counted only when the engine confirms it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.core.ledger import Ledger
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Evidence, Plan, Span

EXECUTABLE = Plan(
    namespace="n",
    prompt_tokens=100,
    spans=(Span(donor_id="d", donor_start=0, target_start=10, length=50),),
    end=60,
    evidence=Evidence(matched_tokens=50),
)
REFUSED = EXECUTABLE.declined(DeclineReason.NO_CERTIFICATE)


def test_a_match_is_evidence_not_a_hit():
    ledger = Ledger()
    ledger.open("r", EXECUTABLE)
    totals = ledger.totals()
    assert totals.discovered_tokens == 50
    assert totals.tokens[Outcome.MATERIALISED] == 0
    assert totals.requests[Outcome.MATERIALISED] == 0


def test_only_confirmation_materialises():
    ledger = Ledger()
    ledger.open("r", EXECUTABLE)
    settlement = ledger.confirm("r", materialised_tokens=50)
    assert settlement.outcome is Outcome.MATERIALISED
    totals = ledger.totals()
    assert totals.tokens[Outcome.MATERIALISED] == 50
    assert totals.tokens[Outcome.COLD] == 50
    assert totals.open_requests == 0


@pytest.mark.parametrize(
    ("plan", "tokens"), [(REFUSED, 10), (EXECUTABLE, 51)], ids=["refused plan", "too many"]
)
def test_claims_beyond_the_plan_are_refused(plan, tokens):
    ledger = Ledger()
    ledger.open("r", plan)
    with pytest.raises(PlanError):
        ledger.confirm("r", materialised_tokens=tokens)
    assert ledger.totals().tokens[Outcome.MATERIALISED] == 0


def test_an_unknown_request_cannot_be_confirmed():
    with pytest.raises(PlanError):
        Ledger().confirm("nobody", materialised_tokens=1)


def test_a_request_is_confirmed_once():
    ledger = Ledger()
    ledger.open("r", EXECUTABLE)
    ledger.confirm("r", materialised_tokens=50)
    with pytest.raises(PlanError):
        ledger.confirm("r", materialised_tokens=50)


def test_declines_keep_their_reason():
    ledger = Ledger()
    ledger.open("r", EXECUTABLE)
    settlement = ledger.computed("r", DeclineReason.DONOR_GONE, "evicted")
    assert (settlement.outcome, settlement.reason) == (Outcome.DECLINED, DeclineReason.DONOR_GONE)
    assert ledger.totals().reasons == {DeclineReason.DONOR_GONE: 1}
    ledger.open("s", REFUSED)
    assert ledger.computed("s").outcome is Outcome.DISCOVERY_ONLY


def test_abandoned_requests_are_settled_cold_and_bounded():
    ledger = Ledger(open_limit=3, recent_limit=2)
    for number in range(10):
        ledger.open(str(number), EXECUTABLE)
    totals = ledger.totals()
    assert totals.open_requests == 3
    assert totals.requests[Outcome.COLD] == 7
    assert len(ledger.recent()) == 2


actions = st.lists(
    st.tuples(
        st.sampled_from(["confirm", "decline", "cold", "exact"]),
        st.integers(0, 50),
        st.integers(0, 10),
    ),
    max_size=30,
)


@given(actions)
def test_settled_tokens_add_up_to_settled_prompts(steps):
    ledger = Ledger()
    for number, (action, materialised, exact) in enumerate(steps):
        name = str(number)
        ledger.open(name, EXECUTABLE)
        if action == "confirm":
            ledger.confirm(name, materialised_tokens=materialised, exact_tokens=exact)
        elif action == "decline":
            ledger.computed(name, DeclineReason.NO_CAPACITY, exact_tokens=exact)
        elif action == "cold":
            ledger.computed(name, exact_tokens=exact)
        else:
            ledger.computed(name, prompt_tokens=100, exact_tokens=exact)
    totals = ledger.totals()
    assert sum(totals.tokens.values()) == 100 * len(steps)
    assert sum(totals.requests.values()) == len(steps)
    confirmed = sum(m for action, m, _ in steps if action == "confirm")
    assert totals.tokens[Outcome.MATERIALISED] == confirmed


def test_what_only_a_permission_kept_from_reuse_is_reusable():
    ledger = Ledger()
    ledger.open("r", REFUSED)
    settled = ledger.computed("r")
    assert settled.reusable_tokens == 50
    assert settled.computed_tokens == 100, "reusable tokens are computed all the same"
    assert settled.donor_ids == ("d",)
    ledger.open("s", EXECUTABLE)
    assert ledger.computed("s", DeclineReason.DISCOVERY_ONLY).reusable_tokens == 50
    ledger.open("t", REFUSED)
    grown = ledger.computed("t", prompt_tokens=100, exact_tokens=80)
    assert grown.reusable_tokens == 20, "the exact prefix may have grown meanwhile"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (EXECUTABLE, DeclineReason.DONOR_GONE),
        (EXECUTABLE.declined(DeclineReason.NOT_WORTH_IT), None),
        (EXECUTABLE.declined(DeclineReason.NOT_WORTH_IT), DeclineReason.DISCOVERY_ONLY),
        (EXECUTABLE, DeclineReason.CANCELLED),
    ],
)
def test_what_would_not_have_been_loaded_anyway_is_not_reusable(plan, reason):
    ledger = Ledger()
    ledger.open("r", plan)
    assert ledger.computed("r", reason).reusable_tokens == 0


def test_what_was_reused_is_not_reusable_once_more():
    ledger = Ledger()
    ledger.open("r", EXECUTABLE)
    assert ledger.confirm("r", materialised_tokens=50).reusable_tokens == 0
