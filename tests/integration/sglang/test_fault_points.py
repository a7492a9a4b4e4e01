"""Every fault point in SGLang: answered as cold, no slot is lost, the ledger says why.

Donors' K/V lies in SGLang's own tree, so tiers and disks are no boundaries here.
"""

from __future__ import annotations

import pytest

from semblend.core.faults import FaultPoint
from semblend.core.outcomes import DeclineReason
from tests.integration.models import joined, random_tokens
from tests.integration.sglang import fault_probes, probes
from tests.integration.sglang.prompts import DONOR, TARGET
from tests.reliability.fault_cases import KEEPING, REUSING, Case, name_the_others
from tests.reliability.fault_results import record

_TREE = "K/V stays in SGLang's tree"
_FLEET = "fleet's, as with the embedded engine"
NO_SUCH_BOUNDARY = {
    FaultPoint.TIER_READ: _TREE,
    FaultPoint.TIER_WRITE: _TREE,
    FaultPoint.CHECKSUM: _TREE,
    FaultPoint.DISK_READ: _TREE,
    FaultPoint.DISK_FULL: _TREE,
    FaultPoint.SLOW_DISK: _TREE,
    FaultPoint.ALLOCATION: _TREE,
    FaultPoint.CAPTURE: _TREE,
    FaultPoint.TRANSPORT_READ: _FLEET,
    FaultPoint.TRANSPORT_WRITE: _FLEET,
    FaultPoint.EVENT_BUS: _FLEET,
}


CASES = [
    Case(point=FaultPoint.INDEX_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.KILLED_WORKER, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.INDEX_READ, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.PLAN, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.LEASE, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.POOL, phase=REUSING, reason=DeclineReason.NO_CAPACITY),
    Case(point=FaultPoint.COPY, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(point=FaultPoint.NESTED_PASS, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(
        point=FaultPoint.NESTED_PASS,
        phase=REUSING,
        reason=DeclineReason.MATERIALISATION_FAILED,
        times=":1:1",
    ),
]


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    return engine


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_is_a_cold_answer_and_leaves_nothing_behind(engine, case):
    cold = engine.cold(TARGET)
    before = engine.call(fault_probes.ledger)["reasons"]
    if case.phase == KEEPING:
        with engine.planted(case.spec) as fired:
            engine.donate(DONOR)
        answer = engine.run(TARGET)
    else:
        engine.donate(DONOR)
        with engine.planted(case.spec) as fired:
            answer = engine.run(TARGET)
    assert fired[case.point] > 0
    assert answer.tokens == cold.tokens
    assert answer.logprobs == pytest.approx(cold.logprobs, abs=1e-4)
    assert answer.cached_tokens == 0
    assert answer.semblend["reason"] == case.reason.value
    assert answer.semblend["outcome"] == case.reason.outcome.value
    after = engine.call(fault_probes.ledger)
    assert after["open"] == 0
    if case.reason is not DeclineReason.NO_MATCH:  # then there was nothing to decline
        assert after["reasons"][case.reason.value] == before.get(case.reason.value, 0) + 1
    assert engine.call(probes.donates, answer.request_id) is not engine.call(
        probes.is_tainted, answer.request_id
    ), "a region that was loaded once is never a donor, whatever became of it"
    engine.assert_no_leak()
    engine.flush()
    engine.donate(DONOR)
    again = engine.run(joined(random_tokens(9, seed=77), TARGET))
    assert again.semblend["outcome"] == "materialised", "and the next one is served"
    engine.assert_no_leak()
    case.record("sglang")


def test_a_clock_that_jumps_changes_nothing(engine):
    engine.donate(DONOR)
    reused = engine.run(TARGET)
    with engine.planted("clock"):
        again = engine.run(TARGET)
    assert again.semblend["outcome"] == "materialised"
    assert again.tokens == reused.tokens
    engine.assert_no_leak()
    record("sglang", FaultPoint.CLOCK, "served as usual")


def test_a_ledger_that_fails_claims_no_reuse(engine):
    engine.donate(DONOR)
    reused = engine.run(TARGET)
    before = engine.call(fault_probes.ledger)
    with engine.planted("settlement") as fired:
        answer = engine.run(TARGET)
    assert fired[FaultPoint.SETTLEMENT] > 0
    assert answer.tokens == reused.tokens
    after = engine.call(fault_probes.ledger)
    assert (after["open"], after["materialised"]) == (0, before["materialised"])
    assert after["reasons"]["internal_error"] == before["reasons"].get("internal_error", 0) + 1
    engine.assert_no_leak()
    record("sglang", FaultPoint.SETTLEMENT, "served, not counted as reuse")


def test_points_that_sglang_does_not_have_are_named():
    tried = {case.point for case in CASES} | {FaultPoint.SETTLEMENT, FaultPoint.CLOCK}
    name_the_others("sglang", tried, NO_SUCH_BOUNDARY)


def test_the_probes_look_at_the_engine_in_use(engine):
    assert engine.call(probes.donors) == 0
