"""Whatever goes wrong, the request is answered as if it had been cold, and nothing leaks.

Faults at the boundaries (index, tiers, copies, passes, …) are in tests/reliability.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import semblend.engine.scheduler as scheduler_module
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.engine.api import FinishReason, TokenEvent
from semblend.engine.batch import ComputeRun
from semblend.engine.segmented import compute
from tests.engine.conftest import Driver, EngineMaker, same
from tests.engine.models import random_tokens, tiny
from tests.engine.test_engine import behind

TOKEN_BYTES = tiny("llama-gqa")[0].kv_shape.token_bytes


def assert_cold(driver: Driver, reason: DeclineReason, outcome: Outcome) -> None:
    """The next request that could reuse is answered as cold, for this reason."""
    warm = driver.run(behind(5))
    assert warm.reason is FinishReason.LENGTH
    assert (warm.report.outcome, warm.report.reason) == (outcome, reason)
    assert warm.report.reused_tokens == 0
    assert same(warm, driver.cold(behind(5)))
    totals = driver.engine.pipeline.ledger.totals()
    assert totals.tokens[Outcome.MATERIALISED] == 0


def test_a_lookup_that_raises_is_a_cold_request(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("index on fire")

    monkeypatch.setattr(driver.engine.pipeline, "plan", broken)
    assert_cold(driver, DeclineReason.INTERNAL_ERROR, Outcome.DECLINED)


def test_a_donor_the_index_names_and_nobody_holds_is_declined_once(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine()
    engine = driver.engine
    assert engine.pipeline.register_donor("lost", behind(1), engine.namespace())
    gone = driver.run(behind(5), donate=False)
    assert (gone.report.outcome, gone.report.reason) == (
        Outcome.DECLINED,
        DeclineReason.DONOR_GONE,
    )
    assert engine.pipeline.stats().donors == 0
    engine.flush_prefix_cache()
    driver.run(behind(1))
    assert driver.run(behind(5), donate=False).report.outcome is Outcome.MATERIALISED


def test_a_donor_dropped_while_it_is_registered_is_not_offered(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    engine = driver.engine
    driver.run(behind(1))  # whose segments it shares, so that they outlive it
    register = engine.pipeline.register_donor

    def too_late(donor_id: str, *args: Any, **options: Any) -> bool:
        engine.donors._drop(donor_id)
        return register(donor_id, *args, **options)

    monkeypatch.setattr(engine.pipeline, "register_donor", too_late)
    engine.flush_prefix_cache()
    driver.run(behind(1))
    assert len(engine.donors) == engine.pipeline.stats().donors == 1


def test_what_fails_between_steps_costs_no_request(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()

    def broken(busy: bool) -> bool:
        raise RuntimeError("no memory")

    monkeypatch.setattr(driver.engine._worker, "_background", broken)
    handles = [driver.submit(random_tokens(40, seed)) for seed in (1, 2)]
    assert [handle.result().reason for handle in handles] == [FinishReason.LENGTH] * 2


def test_exact_prefixes_that_cannot_be_looked_up_are_computed(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    prompt = random_tokens(60, 3)
    cold = driver.run(prompt)

    def broken(*args: Any) -> None:
        raise RuntimeError("table on fire")

    monkeypatch.setattr(driver.engine._prefixes, "match", broken)
    again = driver.run(prompt)
    assert (again.reason, again.report.exact_tokens) == (FinishReason.LENGTH, 0)
    assert same(again, cold)


def test_a_flipped_bit_in_a_donor_is_a_cold_request(make_engine: EngineMaker) -> None:
    driver = make_engine()
    donor = driver.run(behind(1)).report.request_id
    with driver.engine.donors.lease(f"{donor}.1", 0, 10) as held:
        held.pieces[0].kv.view(-1)[1000] += 1.0
    assert_cold(driver, DeclineReason.CORRUPT_DONOR, Outcome.DECLINED)
    assert driver.engine._tiers.stats()[0].corrupt == 1


class FailingDecode:
    """Raises once, in the first pass that decodes."""

    def __init__(self) -> None:
        self.raised = 0

    def __call__(
        self, model: Any, pool: Any, runs: Sequence[ComputeRun], **options: Any
    ) -> torch.Tensor:
        if not self.raised and any(run.start and len(run.tokens) == 1 for run in runs):
            self.raised += 1
            raise RuntimeError("kernel failed")
        return compute(model, pool, runs, **options)


def test_a_decode_over_reused_kv_that_raises_goes_on_as_cold(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    monkeypatch.setattr(scheduler_module, "compute", FailingDecode())
    warm = driver.run(behind(5), max_tokens=6)
    assert warm.report.reason is DeclineReason.MATERIALISATION_FAILED
    # The first token was out already; from there on it is the cold continuation.
    rest = driver.cold(np.append(behind(5), np.int32(warm.token_ids[0])), max_tokens=5)
    assert warm.token_ids[1:] == rest.token_ids


def test_reused_kv_that_is_not_finite_is_computed_again(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    driver.engine.flush_prefix_cache()

    def poisoned(pool: Any, copies: Any, table: Any, drift: Any) -> int:
        pool.stack.fill_(float("nan"))
        return len(copies)

    def poisoned_layer(load: Any, layer: int) -> None:
        load._pool.stack[layer].fill_(float("nan"))

    monkeypatch.setattr("semblend.engine.materialise.copy_spans", poisoned)
    # On a GPU spans from the host are put in place as the pass comes to their layers.
    monkeypatch.setattr("semblend.kv.layerwise.LayerwiseLoad.__call__", poisoned_layer)
    assert_cold(driver, DeclineReason.MATERIALISATION_FAILED, Outcome.DECLINED)


def test_a_request_that_fails_cold_ends_with_an_error_and_harms_nobody(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    poison = random_tokens(33, 9)
    expected = driver.cold(random_tokens(40, 1), max_tokens=30)

    def fails(model: Any, pool: Any, runs: Sequence[ComputeRun], **options: Any) -> torch.Tensor:
        if any(np.array_equal(run.tokens, poison) for run in runs):
            raise RuntimeError("kernel failed")
        return compute(model, pool, runs, **options)

    monkeypatch.setattr(scheduler_module, "compute", fails)
    good = driver.submit(random_tokens(40, 1), max_tokens=30)
    bad = driver.submit(poison)
    assert bad.result().reason is FinishReason.ERROR
    assert "kernel failed" in bad.result().error
    assert same(good.result(), expected)


def test_a_step_that_raises_outside_any_request_does_not_stop_the_engine(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "_prefill_share", lambda *_: 1 / 0)
        assert driver.run(random_tokens(20, 1)).reason is FinishReason.ERROR
    assert driver.run(random_tokens(20, 1)).reason is FinishReason.LENGTH


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_request_can_be_cancelled_at_any_time(make_engine: EngineMaker, after: int) -> None:
    driver = make_engine(step_tokens=16)
    handle = driver.submit(random_tokens(200, 3), max_tokens=300)
    seen = 0
    if after == 0:
        handle.cancel()
    for event in handle.events():
        if isinstance(event, TokenEvent):
            seen += 1
            if seen == after:
                handle.cancel()
    result = handle.result()
    assert result.reason is FinishReason.CANCELLED
    assert after <= seen < 300
    handle.cancel()  # idempotent


def test_a_waiting_request_can_be_cancelled(make_engine: EngineMaker) -> None:
    driver = make_engine(max_running=1)
    running = driver.submit(random_tokens(50, 1), max_tokens=60)
    waiting = driver.submit(random_tokens(50, 2), max_tokens=60)
    waiting.cancel()
    assert waiting.result().reason is FinishReason.CANCELLED
    assert waiting.result().report.output_tokens == 0
    assert running.result().reason is FinishReason.LENGTH


def test_when_pages_run_out_requests_wait_and_answer_as_cold(make_engine: EngineMaker) -> None:
    driver = make_engine(pool_bytes=TOKEN_BYTES * 256)
    prompts = [random_tokens(90 + n, n) for n in range(8)]
    expected = [driver.cold(prompt, max_tokens=12) for prompt in prompts]
    handles = [driver.submit(prompt, max_tokens=12) for prompt in prompts]
    for handle, cold in zip(handles, expected, strict=True):
        assert same(handle.result(), cold)


def test_donors_that_do_not_fit_are_dropped_on_both_sides(make_engine: EngineMaker) -> None:
    driver = make_engine(host_donor_bytes=TOKEN_BYTES * 500)
    for n in range(8):
        driver.run(random_tokens(180, n))
        stats = driver.engine.stats()
        assert stats.tier_bytes["host"] <= TOKEN_BYTES * 500
        assert stats.donors == driver.engine.pipeline.stats().donors == min(n + 1, 2)


def test_an_index_that_evicts_frees_the_donors_kv(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(random_tokens(180, 1))
    assert driver.engine.stats().tier_bytes["host"] > 0
    assert driver.engine.drop_donors() == 1
    stats = driver.engine.stats()
    assert (stats.donors, stats.tier_bytes["host"]) == (0, 0)
    assert driver.engine.pipeline.stats().donors == 0


def test_a_full_capture_queue_drops_donors_and_no_pages(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine(capture_queue=1)
    begun, gate = threading.Event(), threading.Event()
    store = driver.engine.donors._store

    def slow(capture: Any) -> None:
        begun.set()
        assert gate.wait(60)
        store(capture)

    monkeypatch.setattr(driver.engine.donors, "_store", slow)
    for n in range(4):
        driver.submit(random_tokens(40, n)).result()
        assert begun.wait(60), "one is being stored, one waits, two find no place"
    gate.set()
    driver.engine.donors.wait()
    assert driver.engine.donors.skipped == 2
    assert len(driver.engine.donors) == 2
