"""Every fault point in vLLM: answered as cold, no block is lost, the ledger says why.

The same scenario as the embedded engine's (tests/reliability/test_fault_points.py): a donor
is kept and pushed to disk, then reused; a fault is planted in one of the two phases.
"""

from __future__ import annotations

import threading
from collections import Counter
from unittest.mock import patch

import pytest

from semblend.core.faults import FaultPoint, planted
from semblend.core.outcomes import DeclineReason
from semblend.integration.worker import capture_copies as capturing
from semblend.integration.worker.capture_copies import CaptureThread
from tests.integration.models import joined, random_tokens
from tests.reliability.fault_cases import KEEPING, REUSING, Case, name_the_others
from tests.reliability.fault_results import record

DOCUMENT = random_tokens(420, seed=51)
DONOR = joined(random_tokens(50, seed=52), DOCUMENT, random_tokens(20, seed=53))
TARGET = joined(random_tokens(110, seed=54), DOCUMENT, random_tokens(33, seed=55))
FILLERS = [random_tokens(500, seed=60 + number) for number in range(2)]
"""Enough to push the donor out of a host tier of 682 tokens."""
NO_SUCH_BOUNDARY = {
    FaultPoint.POOL: "vLLM's own: blocks are allocated before we are asked",
    FaultPoint.TRANSPORT_READ: "fleet's, as with the embedded engine",
    FaultPoint.TRANSPORT_WRITE: "fleet's, as with the embedded engine",
    FaultPoint.EVENT_BUS: "fleet's, as with the embedded engine",
}


CASES = [
    Case(point=FaultPoint.INDEX_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.INDEX_READ, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.PLAN, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.LEASE, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_READ, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.CHECKSUM, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.DISK_READ, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.DISK_FULL, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.SLOW_DISK, phase=KEEPING, reason=None),
    Case(point=FaultPoint.SLOW_DISK, phase=REUSING, reason=None),
    Case(point=FaultPoint.ALLOCATION, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.ALLOCATION, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.COPY, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(point=FaultPoint.NESTED_PASS, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(point=FaultPoint.CAPTURE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.KILLED_WORKER, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.CLOCK, phase=REUSING, reason=None),
]


@pytest.fixture
def engine(make_engine, tmp_path_factory):
    engine = make_engine(
        "llama",
        host_donor_bytes=1 << 20,
        disk_donor_bytes=64 << 20,
        donor_folder=str(tmp_path_factory.getbasetemp() / "donors"),
        audit_path=str(tmp_path_factory.getbasetemp() / "audit.jsonl"),
    )
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def keep(engine):
    """Keep the donor, and push it to disk."""
    engine.donate(DONOR)
    for filler in FILLERS:
        engine.donate(filler)


def reuse(engine, **options):
    engine.forget_prefixes()
    return engine.run(TARGET, hints={"capture": False}, **options)


def totals(engine):
    return engine.scheduler.planner.pipeline.ledger.totals()


def assert_whole(engine, free_blocks):
    """Blocks, leases, ledger and both sides' books are as if nothing had been."""
    engine.forget_prefixes()
    assert engine.free_blocks() == free_blocks
    assert totals(engine).open_requests == 0
    donors = engine.worker.donors
    assert [tier.leased for tier in donors.tiers.stats()] == [0, 0]
    assert len(donors) == engine.scheduler.planner.pipeline.stats().donors
    engine.forget_donors()
    engine.cold(TARGET)  # workers hear of it with the next step
    assert [tier.used_bytes for tier in donors.tiers.stats()] == [0, 0]
    assert engine.scheduler.planner.pipeline.stats().stored_tokens == 0
    assert not engine.scheduler.requests


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_is_a_cold_answer_and_leaves_nothing_behind(engine, case):
    free_blocks = engine.free_blocks()
    keep(engine)
    donor_on_disk = [tier.segments for tier in engine.worker.donors.tiers.stats()][1] > 0
    assert donor_on_disk
    reused, cold = reuse(engine), engine.cold(TARGET)
    assert reused.semblend["outcome"] == "materialised", "without a fault it is reused"
    engine.forget_donors()
    engine.forget_prefixes()
    before = Counter(totals(engine).reasons)
    if case.phase == KEEPING:
        with planted(case.spec) as faults:
            keep(engine)
        answer = reuse(engine)
    else:
        keep(engine)
        with planted(case.spec) as faults:
            answer = reuse(engine)
    assert faults.fired[case.point] > 0
    if case.reason is None:
        assert answer.semblend["outcome"] == "materialised"
        assert answer.tokens == reused.tokens
    else:
        assert answer.tokens == cold.tokens
        assert answer.semblend["reused_tokens"] == 0
        assert answer.semblend["reason"] == case.reason.value
        assert answer.semblend["outcome"] == case.reason.outcome.value
        if case.reason is not DeclineReason.NO_MATCH:  # then there was nothing to decline
            assert totals(engine).reasons[case.reason] == before[case.reason] + 1
    engine.forget_donors()
    engine.forget_prefixes()
    keep(engine)
    assert reuse(engine).semblend["outcome"] == "materialised", "and the next one is served"
    assert_whole(engine, free_blocks)
    case.record("vllm")


def test_a_ledger_that_fails_claims_no_reuse(engine):
    free_blocks = engine.free_blocks()
    keep(engine)
    reused = reuse(engine)
    before = totals(engine)
    with planted("settlement"):
        answer = reuse(engine)
    assert answer.tokens == reused.tokens
    after = totals(engine)
    assert after.tokens["materialised"] == before.tokens["materialised"]
    assert after.reasons[DeclineReason.INTERNAL_ERROR] == 1 + before.reasons.get(
        DeclineReason.INTERNAL_ERROR, 0
    )
    assert_whole(engine, free_blocks)
    record("vllm", FaultPoint.SETTLEMENT, "served, not counted as reuse")


def test_points_that_vllm_does_not_have_are_named():
    tried = {case.point for case in CASES} | {FaultPoint.SETTLEMENT}
    name_the_others("vllm", tried, NO_SUCH_BOUNDARY)


def test_a_copy_too_slow_for_a_preemption_is_thrown_away(engine):
    """Its blocks are another request's by then: what was copied may not become a donor."""
    captures, going_on = engine.worker.captures, threading.Event()
    read = CaptureThread._read

    def slow(self, *args):
        going_on.wait(30)
        return read(self, *args)

    before = engine.scheduler.planner.pipeline.stats().donors
    with patch.object(CaptureThread, "_read", slow), patch.object(capturing, "_WAIT_S", 0.05):
        request = {"prompt_token_ids": DONOR.tolist()}
        engine.llm.generate([request], engine.sampling(), use_tqdm=False)
        (request_id,) = captures._pending
        captures.wait_for([request_id])
        going_on.set()
        engine.drain()
    assert len(engine.worker.donors) == engine.scheduler.planner.pipeline.stats().donors == before
    assert not captures._overwritten
    keep(engine)
    assert reuse(engine).semblend["outcome"] == "materialised"
