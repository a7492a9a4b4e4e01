"""Whatever goes wrong, the request is answered as cold: at every step on both sides.

Steps between the boundaries; the boundaries themselves are in test_fault_points.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from semblend.core.faults import InjectedError, planted
from semblend.kv.segments import kv_bytes
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=51)
DONOR = joined(random_tokens(50, seed=52), DOCUMENT, random_tokens(20, seed=53))
TARGET = joined(random_tokens(110, seed=54), DOCUMENT, random_tokens(33, seed=55))
PACKAGE = "semblend.integration.vllm"

# Where something is made to raise, and what the response then says.
SCHEDULER_STEPS = {
    "taking note of the request": f"{PACKAGE}.scheduler_side.SchedulerSide.new_request",
    "shaping the plan": f"{PACKAGE}.bridge.PlannerBridge._cut_to_mode",
    "looking for the hazard": f"{PACKAGE}.claims.Claims._claimed",
    "making hashes private": f"{PACKAGE}.claims.PrivateChain",
}
WORKER_STEPS = {
    "rotating": "semblend.kv.torch_copy._turn",
    "writing K/V": f"{PACKAGE}.paged_access.PagedAccess.write",
    "laying holes out": f"{PACKAGE}.worker_side.hole_sequences",
    "building attention metadata": f"{PACKAGE}.nested_pass.NestedPass._common_metadata",
}


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    return engine


@pytest.mark.parametrize("step", SCHEDULER_STEPS)
def test_a_failure_in_the_scheduler_is_a_cold_prefill(engine, step):
    cold = engine.cold(TARGET)
    with patch(SCHEDULER_STEPS[step], side_effect=InjectedError(step)):
        answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert answer.cached_tokens == 0
    assert answer.semblend.get("outcome") != "materialised"
    engine.forget_prefixes()
    assert engine.run(TARGET).semblend["outcome"] == "materialised", "and the next one is served"


@pytest.mark.parametrize("step", WORKER_STEPS)
def test_a_failure_in_the_worker_is_computed_exactly(engine, step):
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    with patch(WORKER_STEPS[step], side_effect=InjectedError(step)):
        answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert (engine.kv(answer, 0, len(TARGET)) - expected).abs().max() < 1e-4
    assert answer.semblend["outcome"] == "declined"
    assert answer.semblend["reason"] == "materialisation_failed"
    assert answer.semblend["reused_tokens"] == 0
    totals = engine.scheduler.bridge.pipeline.ledger.totals()
    assert totals.open_requests == 0
    engine.forget_prefixes()
    assert engine.run(TARGET).semblend["outcome"] == "materialised", "and the next one is served"


def test_a_failed_load_never_becomes_a_donor(engine):
    with planted("nested_pass"):
        engine.run(TARGET)
    assert len(engine.worker.donors) == 1


def test_a_donor_that_is_gone_is_computed_exactly_and_forgotten(engine):
    cold = engine.cold(TARGET)
    for donor_id in list(engine.worker.donors._donors):
        engine.worker.donors.drop(donor_id)
    answer = engine.run(TARGET, hints={"capture": False})
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "donor_gone"
    assert engine.scheduler.bridge.pipeline.stats().donors == 0
    engine.forget_prefixes()
    assert engine.run(TARGET).semblend["reason"] == "no_match"


def test_a_corrupt_donor_is_computed_exactly_and_forgotten(engine):
    cold = engine.cold(TARGET)
    (tier,) = engine.worker.donors.tiers.memory
    for key in tuple(tier.keys()):
        with tier.acquire(key) as lease:
            memory = kv_bytes(lease.segment.kv)
            memory[len(memory) // 2] ^= 1
    answer = engine.run(TARGET, hints={"capture": False})
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "donor_gone"
    assert "corrupt" in answer.semblend["detail"]
    assert engine.scheduler.bridge.pipeline.stats().donors == 0


def test_a_donor_of_other_tokens_is_never_loaded(engine):
    """An id may come to mean something else between planning and loading."""
    cold = engine.cold(TARGET)
    (donor_id,) = engine.worker.donors._donors
    donor = engine.worker.donors._donors[donor_id]
    changed = donor.tokens.copy()
    changed[200] += 1
    with patch.object(
        engine.worker.donors, "_donors", {donor_id: type(donor)(tokens=changed, keys=donor.keys)}
    ):
        answer = engine.run(TARGET, hints={"capture": False})
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "donor_gone"


def test_failures_of_settlement_do_not_stop_the_engine(engine):
    cold = engine.cold(TARGET)
    for step in ("confirmed", "ended"):
        with patch(f"{PACKAGE}.settlement.Settlements.{step}", side_effect=InjectedError):
            engine.run(TARGET)
    engine.forget_donors()
    engine.forget_prefixes()
    assert engine.run(TARGET).tokens == cold.tokens
