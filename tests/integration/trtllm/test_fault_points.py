"""Every fault point in TensorRT-LLM: answered as cold, no block is lost, the ledger says why.

The simulated executor over a real pool and a real model. A donor is kept, then reused by a
ladder, the only way approximate K/V is loaded here; a fault is planted in one of the two
phases. Donors lie in the ranks' host memory, so disks are no boundaries.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
import torch

from semblend.core.faults import FaultPoint, planted
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.integration.trtllm.worker_side import LoadFailedError, TrtWorkerSide
from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import cold, wait_for_copies
from tests.integration.trtllm.generations import GENERATIONS
from tests.reliability.fault_cases import KEEPING, REUSING, Case, name_the_others
from tests.reliability.fault_results import record

DOCUMENT = random_tokens(200, seed=41)
DONOR = joined(random_tokens(24, seed=42), DOCUMENT)
TARGET = joined(random_tokens(32, seed=43), DOCUMENT, random_tokens(9, seed=44))
EXACT = joined(DONOR, random_tokens(30, seed=45))
"""Begins as the donor does: an ordinary request is offered that prefix."""

_HOST = "donors lie in the ranks' host memory alone"
_FLEET = "fleet's, as with the embedded engine"
NO_SUCH_BOUNDARY = {
    FaultPoint.DISK_READ: _HOST,
    FaultPoint.DISK_FULL: _HOST,
    FaultPoint.SLOW_DISK: _HOST,
    FaultPoint.POOL: "TensorRT-LLM's own: blocks are allocated before we load",
    FaultPoint.NESTED_PASS: "holes are computed by ordinary requests",
    FaultPoint.TRANSPORT_READ: _FLEET,
    FaultPoint.TRANSPORT_WRITE: _FLEET,
    FaultPoint.EVENT_BUS: _FLEET,
}
FAILED = DeclineReason.MATERIALISATION_FAILED
CASES = [
    Case(point=FaultPoint.INDEX_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.ALLOCATION, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.CAPTURE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.KILLED_WORKER, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.INDEX_READ, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.PLAN, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.LEASE, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(
        point=FaultPoint.CHECKSUM,
        phase=REUSING,
        reason=DeclineReason.DONOR_GONE,
        times=":1:1",  # the cold request that follows becomes a donor, with checksums of its own
    ),
    Case(point=FaultPoint.TIER_READ, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.ALLOCATION, phase=REUSING, reason=FAILED),
    Case(point=FaultPoint.COPY, phase=REUSING, reason=FAILED),
    Case(point=FaultPoint.CLOCK, phase=REUSING, reason=None),
]


def climbed(engine, prompt):
    # Blocks that nobody fills must not hold NaN: a failed rung is computed, then thrown away.
    engine.executor.paged.pools[0].nan_to_num_(0.0)
    return asyncio.run(engine.ladder(prompt))


def assert_whole(engine):
    """Blocks, pins, ladders and both sides' books are as if nothing had been."""
    engine.settle()
    side = engine.scheduler.side
    assert engine.executor.blocks.users == 0, "every block was given back"
    assert not side.shared.requests
    assert not side.relied_on
    assert not side.shared._captures._pending
    assert not side.room.budget._pins
    assert len(side.ladders) == 0
    assert engine.ledger.totals().open_requests == 0
    engine.run(random_tokens(20, seed=49))  # ranks hear of dropped donors with the next step
    donors = side.planner.pipeline.stats().donors
    assert donors == len(side.room.budget)
    for worker in engine.workers:
        assert len(worker.side.parts.donors) == donors
        assert worker.side.parts.donors.tiers.memory[0].used_bytes == side.room.budget.used_bytes


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_is_a_cold_answer_and_leaves_nothing_behind(make, case, generation):
    engine = make(generation=generation, options={"async_load_tokens": 64})
    reference = cold("llama", TARGET)
    if case.phase == KEEPING:
        with planted(case.spec) as faults:
            engine.run(DONOR)
        answer = climbed(engine, TARGET)
    else:
        engine.run(DONOR)
        reused = climbed(engine, TARGET)
        assert reused.report["reused_tokens"] > 100, "without a fault it is reused"
        before = Counter(engine.ledger.totals().reasons)
        with planted(case.spec) as faults:
            answer = climbed(engine, TARGET)
    assert faults.fired[case.point] > 0
    engine.settle()
    if case.reason is None:
        assert answer.report["reused_tokens"] == reused.report["reused_tokens"]
        assert answer.output.token_ids == reused.output.token_ids
    else:
        assert answer.output.token_ids == reference.generated
        torch.testing.assert_close(answer.output.logits, torch.stack(reference.logits))
        assert answer.report["reused_tokens"] == 0
    if case.phase == REUSING and case.reason is not None:
        assert engine.ledger.totals().reasons[case.reason] > before[case.reason]
    if case.phase == KEEPING:
        assert engine.ledger.totals().tokens[Outcome.MATERIALISED] == 0
    assert_whole(engine)
    engine.executor.blocks.forget_cached()
    engine.run(DONOR)
    again = climbed(engine, TARGET)
    assert again.report["reused_tokens"] > 100, "and the next one is served"
    assert_whole(engine)
    case.record("trtllm")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at_once", "parked"])
def test_a_ledger_that_fails_claims_no_reuse_and_stops_no_step(make, asynchronous):
    engine = make(options={"async_load_tokens": 64 if asynchronous else None})
    engine.run(DONOR)
    reused, reference = climbed(engine, TARGET), cold("llama", EXACT)
    engine.executor.blocks.forget_cached()
    before = engine.ledger.totals()
    with planted("settlement") as faults:
        exact = engine.run(EXACT)
        ladder = climbed(engine, TARGET)
        plain = engine.run(random_tokens(80, seed=48))
        engine.settle()
    assert faults.fired[FaultPoint.SETTLEMENT] > 2
    assert exact.generated == reference.generated
    assert ladder.output.token_ids == reused.output.token_ids
    assert plain.generated == cold("llama", random_tokens(80, seed=48)).generated
    after = engine.ledger.totals()
    assert after.tokens[Outcome.MATERIALISED] == before.tokens[Outcome.MATERIALISED]
    assert after.reasons[DeclineReason.INTERNAL_ERROR] >= 2
    assert sum(after.requests.values()) == len(engine.executor.finished)
    assert len(engine.records("ledger_refused")) == faults.fired[FaultPoint.SETTLEMENT]
    assert_whole(engine)
    engine.executor.blocks.forget_cached()
    engine.run(EXACT)
    assert engine.ledger.totals().tokens[Outcome.MATERIALISED] > after.tokens[Outcome.MATERIALISED]
    record("trtllm", FaultPoint.SETTLEMENT, "served, not counted as reuse")


@pytest.mark.parametrize("point", ["lease", "allocation", "copy"])
def test_an_exact_prefix_that_cannot_be_loaded_is_never_answered_wrongly(make, point):
    """TensorRT-LLM cannot be told: the step is stopped, and the ledger claims nothing."""
    engine = make()
    engine.run(DONOR)
    engine.executor.blocks.forget_cached()
    with planted(f"{point}:1:1"), pytest.raises(LoadFailedError):
        engine.run(EXACT)
    engine.scheduler.side.settle()
    totals = engine.ledger.totals()
    assert totals.tokens[Outcome.MATERIALISED] == 0
    assert totals.reasons[DeclineReason.DONOR_GONE if point == "lease" else FAILED] == 1


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at_once", "parked"])
def test_a_thread_struck_down_never_passes_for_a_finished_copy(make, asynchronous):
    engine = make(options={"async_load_tokens": 64 if asynchronous else None})
    engine.run(DONOR)
    reference = cold("llama", TARGET)
    with planted("killed_worker") as faults:
        answer = climbed(engine, TARGET)
    if asynchronous:
        assert faults.fired[FaultPoint.KILLED_WORKER] > 0
        assert "KilledWorkerError" in answer.report["failed"]
        assert answer.output.token_ids == reference.generated
    else:
        assert answer.report["reused_tokens"] > 0, "nothing is loaded on a thread"
    assert_whole(engine)


def test_an_answer_that_breaks_something_stops_no_step(make, monkeypatch):
    engine = make()
    engine.run(DONOR)
    engine.executor.blocks.forget_cached()
    side = engine.scheduler.side
    for part, name in ((side.shared._captures, "settle"), (side.room, "unpin")):
        with monkeypatch.context() as broken:
            broken.setattr(part, name, lambda *_: 1 / 0)
            request = engine.run(EXACT)
        assert request.generated == cold("llama", EXACT).generated
        engine.executor.blocks.forget_cached()
    assert engine.executor.blocks.users == 0


def test_a_request_that_is_asked_about_anew_is_settled_once(make, monkeypatch):
    """Its first allocation was destroyed: what was loaded into it is not what is reused."""
    engine = make(options={"async_load_tokens": 64})
    door, load = threading.Event(), TrtWorkerSide._copy

    def waiting(self, command):
        assert door.wait(30)
        load(self, command)

    monkeypatch.setattr(TrtWorkerSide, "_copy", waiting)
    engine.run(DONOR)
    engine.executor.blocks.forget_cached()
    side, before = engine.scheduler.side, engine.ledger.totals()
    request = engine.executor.submit(EXACT)
    engine.executor.step()
    first = side.shared.requests[str(request.request_id)]
    assert side.relied_on, "a load is on its way"
    assert side.matched_tokens(request, 0)[0] == first.claim.end
    (second,) = side.shared.requests.values()
    assert second is not first
    assert second.account is first.account
    door.set()
    for worker in engine.workers:
        wait_for_copies(worker.side)
        worker.side.finished([], [])
    side.settle()
    assert not first.account.is_settled, "the ranks' answer is about blocks that are gone"
    side.request_finished(request)
    after = engine.ledger.totals()
    assert after.open_requests == 0
    assert after.tokens[Outcome.MATERIALISED] == before.tokens[Outcome.MATERIALISED]
    assert after.reasons[DeclineReason.CANCELLED] == 1
    assert sum(after.requests.values()) == sum(before.requests.values()) + 1


def test_points_that_tensorrt_llm_does_not_have_are_named():
    tried = {case.point for case in CASES} | {FaultPoint.SETTLEMENT}
    name_the_others("trtllm", tried, NO_SUCH_BOUNDARY)
    assert not tried & set(NO_SUCH_BOUNDARY)
