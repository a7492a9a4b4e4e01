"""Whatever goes wrong, the request is answered as cold: at every step on both sides.

Steps between the boundaries; the boundaries themselves are in test_fault_points.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch

from semblend.core.faults import InjectedError, planted
from semblend.kv.segments import kv_bytes
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=51)
DONOR = joined(random_tokens(50, seed=52), DOCUMENT, random_tokens(20, seed=53))
TARGET = joined(random_tokens(110, seed=54), DOCUMENT, random_tokens(33, seed=55))
OTHER = random_tokens(200, seed=56)
PACKAGE = "semblend.integration"

# Where something is made to raise, and what the response then says.
SCHEDULER_STEPS = {
    "taking note of the request": f"{PACKAGE}.scheduler.side.SchedulerSide._arrived",
    "shaping the plan": f"{PACKAGE}.scheduler.engine_planner.EnginePlanner._cut_to",
    "claiming": f"{PACKAGE}.scheduler.claims.Claims._claimed",
    "making hashes private": f"{PACKAGE}.vllm.scheduler_port.PrivateChain",
    "ordering the load": f"{PACKAGE}.scheduler.side.LoadCommand",
}
WORKER_STEPS = {
    "rotating": "semblend.kv.torch_copy._turn",
    "writing K/V": f"{PACKAGE}.vllm.paged_access.PagedAccess.write",
    "laying holes out": f"{PACKAGE}.worker.loads.sequences_of",
    "building attention metadata": f"{PACKAGE}.vllm.nested_pass.NestedPass._common_metadata",
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


def test_a_load_goes_out_whatever_else_of_the_step_fails(engine):
    """The engine waits for its answer."""
    with patch(f"{PACKAGE}.scheduler.capture_orders.Captures.orders", side_effect=InjectedError):
        answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "materialised"
    cold = engine.cold(TARGET)
    with patch(f"{PACKAGE}.worker.side.WorkerSide._housekeeping", side_effect=InjectedError):
        engine.forget_prefixes()
        answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "materialisation_failed"


def test_what_could_not_be_ordered_is_not_captured_later(engine):
    """Its blocks are freed by then."""

    def odd(scheduled):
        raise InjectedError("an oddity in the step")
        yield

    (output,) = engine.llm.generate(
        [{"prompt_token_ids": OTHER.tolist()}],
        engine.sampling(max_tokens=70, hints={"reuse": False}),
        use_tqdm=False,
    )
    assert engine.scheduler.has_held_blocks
    with patch(f"{PACKAGE}.vllm.scheduler_port._computes", odd):
        engine.run(random_tokens(600, seed=57), max_tokens=1)
    engine.drain()
    answered = joined(OTHER, np.asarray(output.outputs[0].token_ids[:-1], dtype=np.int32))
    assert not engine.holds(answered)
    assert engine.worker.donors.holding(answered) is None
    assert engine.scheduler.planner.pending == 0
    assert not engine.scheduler._captures._pending


def test_an_answer_that_cannot_be_registered_ends_its_capture(engine):
    with patch(f"{PACKAGE}.scheduler.capture_orders.Captures._registered", side_effect=OSError):
        engine.run(OTHER, hints={"reuse": False})
    assert not engine.scheduler._captures._pending
    assert not engine.scheduler.has_held_blocks


def test_donors_are_dropped_once_they_can_be(engine):
    """A reset may mean other weights: nothing is loaded or kept before they are gone."""
    engine.scheduler_connector.reset_cache()
    with patch.object(engine.worker.donors, "clear", side_effect=OSError("the disk")):
        engine.run(TARGET, max_tokens=1)
    assert [donor.tokens.tolist() for donor in engine.worker.donors._donors.values()] == [
        DONOR.tolist()
    ]
    engine.run(OTHER, max_tokens=1)
    assert [donor.tokens.tolist() for donor in engine.worker.donors._donors.values()] == [
        OTHER.tolist()
    ]


def test_a_step_of_loads_that_breaks_is_answered_all_the_same(engine):
    cold = engine.cold(TARGET)
    with patch(f"{PACKAGE}.worker.loads.WorkerLoads._together", side_effect=InjectedError):
        answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "materialisation_failed"


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
    totals = engine.scheduler.planner.pipeline.ledger.totals()
    assert totals.open_requests == 0
    engine.forget_prefixes()
    assert engine.run(TARGET).semblend["outcome"] == "materialised", "and the next one is served"


def test_what_a_failed_load_left_to_compute_is_exact_for_everybody(engine):
    """It was computed exactly, so it is public, and a donor like any other prompt."""
    expected = engine.kv(engine.cold(TARGET), 0, len(TARGET))
    with planted("nested_pass"):
        failed = engine.run(TARGET)
    assert failed.cached_tokens == 0, "nothing is called cached that was computed"
    assert engine.run(TARGET, hints={"reuse": False}).cached_tokens >= len(TARGET) - 32
    assert len(engine.worker.donors) == 2
    donor_id = list(engine.worker.donors._donors)[-1]
    with engine.worker.donors.lease(donor_id, 0, len(TARGET)) as donor:
        kept = torch.cat([piece.kv for piece in donor.pieces], dim=2)
    assert (kept - expected).abs().max() < 1e-4


@pytest.mark.parametrize("point", ["lease", "copy"])
@pytest.mark.parametrize("mode", ["exact_prefix", "segmented_experimental"])
def test_a_failed_load_poisons_no_donor(make_engine, mode, point):
    """Two prompts that continue one donor arrive together, and the first one's load fails.

    Had the second one found the first one's blocks before they held anything, it would
    have become a donor of garbage, and what is loaded from it later would be called exact.
    """
    engine = make_engine("llama", mode=mode)
    start = random_tokens(320, seed=70)
    first, second = (joined(start, random_tokens(40, seed=seed)) for seed in (71, 72))
    later = joined(second, random_tokens(30, seed=73))
    cold = {tokens.tobytes(): engine.cold(tokens) for tokens in (first, second, later)}
    expected = engine.kv(cold[later.tobytes()], 0, len(later))
    engine.forget_donors()
    engine.donate(joined(start, random_tokens(9, seed=74)))
    with planted(f"{point}:1:1"):
        answers = engine.run_all([first, second])
    for prompt, answer in zip((first, second), answers, strict=True):
        assert answer.tokens == cold[prompt.tobytes()].tokens
    engine.forget_prefixes()
    warm = engine.run(later, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    assert warm.semblend["approximate"] is False
    assert warm.tokens == cold[later.tobytes()].tokens
    assert (engine.kv(warm, 0, len(later)) - expected).abs().max() < 1e-4


def test_a_failed_load_disturbs_nobody_beside_it(engine):
    """Nor those that share an exact prefix with it and are running."""
    head = random_tokens(96, seed=80)
    failing = joined(head, random_tokens(14, seed=81), DOCUMENT, random_tokens(20, seed=82))
    others = [joined(head, random_tokens(50 + n, seed=83 + n)) for n in range(3)]
    alone = [engine.cold(prompt, max_tokens=20) for prompt in (*others, failing)]
    llm = engine.llm.llm_engine
    sampling = engine.sampling(max_tokens=20, hints={"capture": False})
    prompts = [{"prompt_token_ids": prompt.tolist()} for prompt in (*others, failing)]
    for number, prompt in enumerate(prompts[:-1]):
        llm.add_request(f"other-{number}", prompt, sampling)
    for _ in range(4):
        llm.step()
    llm.add_request("failing", prompts[-1], sampling)
    with planted("nested_pass:1:1") as faults:
        ended = {}
        while llm.has_unfinished_requests():
            for output in llm.step():
                if output.finished:
                    ended[output.request_id] = tuple(output.outputs[0].token_ids)
    assert sum(faults.fired.values()) == 1
    names = [*(f"other-{number}" for number in range(3)), "failing"]
    assert [ended[name] for name in names] == [answer.tokens for answer in alone]


def test_a_donor_that_is_gone_is_computed_exactly_and_forgotten(engine):
    cold = engine.cold(TARGET)
    for donor_id in list(engine.worker.donors._donors):
        engine.worker.donors.drop(donor_id)
    answer = engine.run(TARGET, hints={"capture": False})
    assert answer.tokens == cold.tokens
    assert answer.semblend["reason"] == "donor_gone"
    assert engine.scheduler.planner.pipeline.stats().donors == 0
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
    assert engine.scheduler.planner.pipeline.stats().donors == 0


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
        with patch(f"{PACKAGE}.scheduler.settlement.Settlements.{step}", side_effect=InjectedError):
            engine.run(TARGET)
    engine.forget_donors()
    engine.forget_prefixes()
    assert engine.run(TARGET).tokens == cold.tokens
