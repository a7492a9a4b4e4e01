"""Spans that the first pass brings in: the same answers, every failure cold, no lease kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

import semblend.engine.engine as engine_module
import semblend.engine.scheduler as scheduler_module
import semblend.kv.tiers.memory as memory_module
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.engine.admission import Admission
from semblend.engine.api import FinishReason
from semblend.engine.batch import ComputeRun
from semblend.engine.segmented import compute
from semblend.kv.segments import kv_checksum
from tests.engine.conftest import REUSING, Driver, EngineMaker, same
from tests.engine.models import random_tokens
from tests.engine.test_engine import behind
from tests.engine.test_failures import assert_cold


@pytest.fixture(autouse=True)
def layerwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, on whatever this machine has."""
    monkeypatch.setattr(engine_module, "Admission", partial(Admission, layerwise=True))


def leased(driver: Driver) -> int:
    return sum(tier.leased for tier in driver.engine._tiers.stats())


PROBING = "budget(span_head(2) + query_attention(0.2, 16), 0.3)"
"""Looks at copied K/V before the first pass."""


@pytest.mark.parametrize("policy", ["none", PROBING])
@pytest.mark.parametrize("step_tokens", [16, 2048])
def test_a_hit_is_what_it_is_with_spans_loaded_at_once(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, step_tokens: int, policy: str
) -> None:
    results = []
    for by_layer in (True, False):
        monkeypatch.setattr(engine_module, "Admission", partial(Admission, layerwise=by_layer))
        driver = make_engine(step_tokens=step_tokens)
        driver.run(behind(1))
        results.append(driver.run(behind(5), max_tokens=6, policy=policy))
        assert results[-1].report.outcome is Outcome.MATERIALISED
        assert bool(results[-1].report.recomputed_tokens) is (policy == PROBING)
        assert leased(driver) == 0
    assert same(*results, tolerance=0.0)


def test_hits_that_load_in_one_pass_do_not_disturb_each_other(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1))
    alone = [driver.run(behind(head), donate=False) for head in (5, 7, 9)]
    handles = [driver.submit(behind(head), donate=False) for head in (5, 7, 9)]
    for handle, expected in zip(handles, alone, strict=True):
        result = handle.result()
        assert result.report.outcome is Outcome.MATERIALISED
        assert same(result, expected)
    assert leased(driver) == 0


@pytest.mark.parametrize("policy", ["none", PROBING])
def test_a_corrupt_donor_is_found_before_the_first_token(
    make_engine: EngineMaker, policy: str
) -> None:
    driver = make_engine(settings=REUSING.model_copy(update={"recompute_policy": policy}))
    donor = driver.run(behind(1)).report.request_id
    with driver.engine.donors.lease(f"{donor}.1", 0, 10) as held:
        held.pieces[0].kv.view(-1)[1000] += 1.0
    assert_cold(driver, DeclineReason.CORRUPT_DONOR, Outcome.DECLINED)
    assert leased(driver) == 0
    assert f"{donor}.1" not in {held_id for held_id, _, _ in driver.engine.donors.inventory()}
    assert [tier.corrupt for tier in driver.engine._tiers.stats()] == [1]


def test_a_donor_that_turns_bad_beside_others_costs_only_its_own_request(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine()
    donor = driver.run(behind(1)).report.request_id
    other = random_tokens(90, 8)
    expected = [driver.cold(behind(5)), driver.cold(other, max_tokens=20)]
    with driver.engine.donors.lease(f"{donor}.1", 0, 10) as held:
        held.pieces[0].kv.view(-1)[1000] += 1.0
    beside = driver.submit(other, max_tokens=20, reuse=False, donate=False)
    hit = driver.submit(behind(5), donate=False)
    assert same(hit.result(), expected[0])
    assert same(beside.result(), expected[1])
    assert hit.result().report.reused_tokens == 0


class HeldChecks:
    """Checksums that wait until they are let go, and note who computes them."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, kv: torch.Tensor) -> int:
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.go.wait(60)
        return kv_checksum(kv)


def test_checksums_are_computed_beside_the_pass_and_waited_for(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    expected = driver.run(behind(5), donate=False)
    held, computed = HeldChecks(), threading.Event()

    def watched(*arguments: Any, **options: Any) -> torch.Tensor:
        logits = compute(*arguments, **options)
        computed.set()
        return logits

    monkeypatch.setattr(memory_module, "kv_checksum", held)
    monkeypatch.setattr(scheduler_module, "compute", watched)
    handle = driver.submit(behind(5), donate=False)
    assert held.begun.wait(60)
    # The pass is over although not one checksum is known, and nothing has been said.
    assert computed.wait(60)
    assert handle.prompt_report is None
    held.go.set()
    assert same(handle.result(), expected)
    assert handle.result().report.outcome is Outcome.MATERIALISED
    assert all(name.startswith("semblend-checks") for name in held.threads)


def test_a_check_that_cannot_be_made_counts_as_failed(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))

    def broken(kv: torch.Tensor) -> int:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(memory_module, "kv_checksum", broken)
    assert_cold(driver, DeclineReason.CORRUPT_DONOR, Outcome.DECLINED)
    assert leased(driver) == 0


class TornLoad:
    """The first pass that loads fails after its first layer."""

    def __init__(self) -> None:
        self.raised = 0

    def __call__(
        self,
        model: Any,
        pool: Any,
        runs: Sequence[ComputeRun],
        *,
        before_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        if before_layer is None or self.raised:
            return compute(model, pool, runs, before_layer=before_layer)

        def torn(layer: int) -> None:
            if layer == 1:
                self.raised += 1
                raise RuntimeError("bus error")
            before_layer(layer)

        return compute(model, pool, runs, before_layer=torn)


def test_a_load_torn_half_way_is_computed_from_tokens(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    torn = TornLoad()
    monkeypatch.setattr(scheduler_module, "compute", torn)
    assert_cold(driver, DeclineReason.MATERIALISATION_FAILED, Outcome.DECLINED)
    assert torn.raised == 1
    assert leased(driver) == 0


def test_a_torn_load_harms_no_other_request(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    other = random_tokens(90, 8)
    expected = [driver.cold(behind(5)), driver.cold(other, max_tokens=20)]
    monkeypatch.setattr(scheduler_module, "compute", TornLoad())
    beside = driver.submit(other, max_tokens=20, reuse=False, donate=False)
    hit = driver.submit(behind(5), donate=False)
    assert hit.result().reason is FinishReason.LENGTH
    assert same(hit.result(), expected[0])
    assert same(beside.result(), expected[1])


def test_a_hit_cancelled_before_its_pass_gives_its_donors_back(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine(step_tokens=16)
    driver.run(behind(1))
    busy = driver.submit(random_tokens(300, 3), max_tokens=2, donate=False)
    hit = driver.submit(behind(5), donate=False)
    hit.cancel()
    assert hit.result().reason is FinishReason.CANCELLED
    assert busy.result().reason is FinishReason.LENGTH
    assert leased(driver) == 0
