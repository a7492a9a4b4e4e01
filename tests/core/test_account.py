"""An account never raises, settles once, and claims no reuse that the ledger did not take."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.account import Account, Accounts, Reuse
from semblend.core.errors import PlanError
from semblend.core.faults import planted
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason, Outcome, outcome_of
from semblend.core.plan import Plan, Span

SPAN = Span(donor_id="d", donor_start=0, target_start=20, length=50)
PLAN = Plan(namespace="n", prompt_tokens=100, spans=(SPAN,), end=70, exact_tokens=10)
REFUSED = Plan(namespace="n", prompt_tokens=100, exact_tokens=10, reason=DeclineReason.NO_MATCH)


class Books:
    """A ledger and what its accounts tell."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.settled: list[Settlement] = []
        self.refused: list[Settlement] = []
        self.accounts = Accounts(
            ledger=self.ledger, settled=self.settled.append, refused=self.refused.append
        )

    def open(self, name: str = "r", prompt_tokens: int = 100) -> Account:
        return self.accounts.open(name, prompt_tokens=prompt_tokens)


@pytest.fixture
def books() -> Books:
    return Books()


def test_confirmed_reuse_is_counted_once(books: Books) -> None:
    account = books.open()
    account.exact_tokens = 10
    account.claimed(PLAN)
    assert not account.is_settled
    assert account.confirmed(Reuse.of(PLAN))
    assert not account.confirmed(Reuse.of(PLAN)), "preempted and loaded again"
    account.failed(DeclineReason.DONOR_GONE)
    account.ended()
    (settlement,) = books.settled
    assert settlement.outcome is Outcome.MATERIALISED
    assert (settlement.exact_tokens, settlement.materialised_tokens) == (10, 50)
    assert books.ledger.recent() == (settlement,)
    assert not books.refused


def test_a_ledger_that_fails_settles_the_request_and_claims_nothing(books: Books) -> None:
    for number, tell in enumerate(("confirmed", "failed", "ended")):
        account = books.open(str(number))
        account.claimed(PLAN)
        with planted("settlement") as faults:
            if tell == "confirmed":
                assert not account.confirmed(Reuse.of(PLAN))
            elif tell == "failed":
                account.failed(DeclineReason.CORRUPT_DONOR, "checksum")
            else:
                account.ended()
        assert sum(faults.fired.values()) == 1
        assert account.is_settled
    totals = books.ledger.totals()
    assert (totals.open_requests, totals.tokens[Outcome.MATERIALISED]) == (0, 0)
    assert totals.reasons == {DeclineReason.INTERNAL_ERROR: 2, DeclineReason.CORRUPT_DONOR: 1}
    assert books.refused == books.settled == list(books.ledger.recent())


def test_reuse_beyond_the_plan_is_not_believed(books: Books) -> None:
    account = books.open()
    account.claimed(PLAN)
    assert not account.confirmed(Reuse(reused_tokens=51))
    assert books.settled[0].reason is DeclineReason.INTERNAL_ERROR
    unplanned = books.open("other")
    assert not unplanned.confirmed(Reuse(reused_tokens=1))
    assert books.ledger.totals().tokens[Outcome.MATERIALISED] == 0


def test_listeners_and_a_ledger_that_is_broken_altogether_stop_nobody() -> None:
    class Broken(Ledger):
        def open(self, request_id: str, plan: Plan) -> None:
            raise OSError("open")

        def computed(self, *_: object, **__: object) -> Settlement:
            raise OSError("computed")

        def write_off(self, settlement: Settlement) -> None:
            raise OSError("write_off")

    told: list[Settlement] = []

    def listener(settlement: Settlement) -> None:
        told.append(settlement)
        raise OSError("listener")

    account = Accounts(ledger=Broken(), settled=listener, refused=listener).open(
        "r", prompt_tokens=8
    )
    account.exact_tokens = 99
    account.claimed(PLAN)
    account.failed(DeclineReason.DONOR_GONE)
    account.ended()
    assert account.is_settled
    assert len(told) == 2, "refused, then settled, once each"


def test_the_plans_own_reason_is_kept_unless_another_is_noted(books: Books) -> None:
    planned, noted = books.open("planned"), books.open("noted")
    for account in (planned, noted):
        account.claimed(REFUSED)
    noted.decline(DeclineReason.NO_CAPACITY, "too many")
    planned.ended()
    noted.ended()
    reasons = [(one.outcome, one.reason, one.detail) for one in books.settled]
    assert reasons == [
        (Outcome.COLD, DeclineReason.NO_MATCH, ""),
        (Outcome.DECLINED, DeclineReason.NO_CAPACITY, "too many"),
    ]


def test_a_request_that_was_never_planned_for_is_in_the_ledger_too(books: Books) -> None:
    account = books.open(prompt_tokens=7)
    account.ended()
    assert books.settled[0].prompt_tokens == 7
    with pytest.raises(PlanError):
        books.ledger.computed("nobody")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("decline"), st.sampled_from(DeclineReason)),
        st.tuples(st.just("claimed"), st.sampled_from((PLAN, REFUSED))),
        st.tuples(st.just("confirmed"), st.integers(-1, 60)),
        st.tuples(st.just("failed"), st.sampled_from(DeclineReason)),
        st.tuples(st.just("exact"), st.integers(0, 120)),
        st.tuples(st.just("ended"), st.none()),
        st.tuples(st.just("fault"), st.booleans()),
    ),
    max_size=12,
)


@given(st.lists(steps, min_size=1, max_size=4))
def test_any_history_settles_each_request_once_and_its_tokens_add_up(histories) -> None:
    books, believed = Books(), 0
    for number, history in enumerate(histories):
        account, fault = books.open(str(number)), False
        for verb, value in [*history, ("fault", False), ("ended", None)]:
            if verb == "exact":
                account.exact_tokens = value
            elif verb == "fault":
                fault = value
            else:
                with planted("settlement" if fault else ""):
                    if verb == "confirmed":
                        took = account.confirmed(Reuse(reused_tokens=value))
                        believed += value if took else 0
                    elif verb == "ended":
                        account.ended()
                    else:
                        getattr(account, verb)(value)
        assert account.is_settled
    totals = books.ledger.totals()
    assert totals.open_requests == 0
    assert [one.request_id for one in books.settled] == list(map(str, range(len(histories))))
    assert Counter(one.outcome for one in books.settled) == +Counter(totals.requests)
    assert sum(totals.tokens.values()) == 100 * len(histories)
    assert totals.tokens[Outcome.MATERIALISED] == believed
    assert list(books.ledger.recent()) == books.settled


@given(
    reason=st.one_of(st.none(), st.sampled_from(DeclineReason)),
    exact=st.integers(0, 100),
    confirms=st.booleans(),
)
def test_ledger_and_response_call_a_request_the_same(reason, exact, confirms) -> None:
    books = Books()
    account = books.open()
    account.exact_tokens = min(exact, 50)
    account.claimed(PLAN)
    if reason is not None:
        account.decline(reason, "why")
    reuse = Reuse.of(PLAN) if confirms else None
    if reuse is not None:
        account.confirmed(reuse)
    account.ended()
    said = account.report(reuse, approximate=True, certified=False)
    (settlement,) = books.settled
    assert said["outcome"] == settlement.outcome.value
    assert said["reused_tokens"] == settlement.materialised_tokens
    assert said["exact_tokens"] == settlement.exact_tokens
    assert said.get("reason") == (settlement.reason and settlement.reason.value)
    assert said["approximate"] is confirms
    assert ("donor_ids" in said) is confirms


@pytest.mark.parametrize("reason", [None, *DeclineReason])
@pytest.mark.parametrize(("reused", "exact"), [(0, 0), (0, 5), (7, 0), (7, 5)])
def test_the_outcome_rule(reason: DeclineReason | None, reused: int, exact: int) -> None:
    outcome = outcome_of(reason, reused_tokens=reused, exact_tokens=exact)
    if reused:
        assert outcome is Outcome.MATERIALISED
    elif reason is not None and reason.outcome in (Outcome.DECLINED, Outcome.DISCOVERY_ONLY):
        assert outcome is reason.outcome
    else:
        assert outcome is (Outcome.EXACT_PREFIX if exact else Outcome.COLD)
