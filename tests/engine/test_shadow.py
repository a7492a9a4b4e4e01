"""Reuse that diverges from cold is noticed, turned off with evidence, and turned on by hand."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.settings import Settings
from semblend.engine.api import RequestReport
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.options import EngineOptions
from semblend.engine.segmented import compute
from tests.engine.conftest import REUSING, Driver, EngineMaker
from tests.engine.models import random_tokens, tiny

PASSAGE = random_tokens(150, 1)
WATCHED = REUSING.model_copy(update={"shadow_rate": 1.0})


def ask(driver: Driver, number: int, policy: str | None = None) -> RequestReport:
    prompt = np.concatenate((random_tokens(5 + number % 7, 100 + number), PASSAGE))
    prompt = np.concatenate((prompt, random_tokens(4, 300 + number)))
    return driver.run(prompt, policy=policy, donate=False, max_tokens=4).report


def settle(driver: Driver, samples: int) -> None:
    """Wait until so many samples were judged."""
    deadline = time.monotonic() + 60
    while driver.engine.stats().shadow_samples < samples and time.monotonic() < deadline:
        driver.engine._wake()
        time.sleep(0.01)
    assert driver.engine.stats().shadow_samples >= samples


def donate(driver: Driver) -> None:
    driver.run(np.concatenate((random_tokens(20, 50), PASSAGE)))


def test_diverging_reuse_is_turned_off_and_an_operator_turns_it_on_again(
    make_engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_engine(settings=WATCHED)
    donate(driver)
    # A random model's K/V depends on everything before it: naive reuse is far from cold.
    reports = []
    with caplog.at_level(logging.WARNING, logger="semblend.shadow"):
        for number in range(60):
            reports.append(ask(driver, number))
            if reports[-1].reason is DeclineReason.SHADOW_DIVERGED:
                break
            settle(driver, number + 1)
    assert reports[0].outcome is Outcome.MATERIALISED
    assert reports[-1].reason is DeclineReason.SHADOW_DIVERGED
    assert reports[-1].outcome is Outcome.DECLINED
    assert "shadow samples; the bound is 5.0%" in reports[-1].detail
    assert "reuse is turned off" in caplog.text
    stats = driver.engine.stats()
    assert stats.suspended_namespaces == 1
    assert stats.shadow_divergence > 0
    assert stats.shadow_disagreement > 0.05
    assert driver.engine.resume_reuse(driver.engine.namespace()) == 1
    assert driver.engine.stats().suspended_namespaces == 0
    assert ask(driver, 70).outcome is Outcome.MATERIALISED
    settle(driver, len(reports))


def test_another_namespace_goes_on_reusing(make_engine: EngineMaker) -> None:
    driver = make_engine(settings=WATCHED)
    engine = driver.engine
    key = engine.pipeline.share_key(engine.namespace(tenant="a"))
    engine.shadow.watch.suspend(key, "evidence")
    assert engine.shadow.objection(key) == "evidence"
    assert engine.shadow.objection(engine.pipeline.share_key(engine.namespace(tenant="b"))) is None
    assert engine.shadow.objection(None) is None
    assert engine.resume_reuse() == 1


def test_samples_agree_with_what_a_cold_engine_says(make_engine: EngineMaker) -> None:
    """The divergence of a sample is that of the answers' own distributions."""
    driver = make_engine(settings=WATCHED)
    donate(driver)
    prompt = np.concatenate((random_tokens(9, 5), PASSAGE, random_tokens(4, 6)))
    warm = driver.run(prompt, donate=False, max_tokens=1, top_logprobs=20)
    settle(driver, 1)
    cold = driver.cold(prompt, max_tokens=1, top_logprobs=20)
    differs = warm.token_ids != cold.token_ids
    assert driver.engine.stats().shadow_disagreement == pytest.approx(float(differs))


class Passes:
    """Stands where a GPU's passes stand, computes with transformers and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def compute(self, pool: Any, runs: Any, *, replay: bool = True, **hooks: Any) -> torch.Tensor:
        self.asked.append((sum(run.logit_rows for run in runs), replay))
        return compute(tiny("llama-gqa")[0], pool, runs, **hooks)


def test_a_sample_goes_through_the_passes_that_serve_and_takes_no_recorded_ones_place() -> None:
    passes = Passes()
    model = replace(tiny("llama-gqa")[0], passes=passes)
    options = EngineOptions(page_size=8, pool_bytes=model.kv_shape.token_bytes * 2048)
    with EmbeddedEngine(model, options=options, settings=WATCHED) as engine:
        driver = Driver(engine)
        donate(driver)
        assert ask(driver, 1).outcome is Outcome.MATERIALISED
        settle(driver, 1)
    assert [asked for asked in passes.asked if not asked[1]] == [(4, False)]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_only_the_asked_share_of_reused_requests_is_sampled(
    make_engine: EngineMaker, rate: float
) -> None:
    driver = make_engine(settings=REUSING.model_copy(update={"shadow_rate": rate}))
    donate(driver)
    driver.cold(random_tokens(90, 4))
    for number in range(3):
        assert ask(driver, number).outcome is Outcome.MATERIALISED
    settle(driver, 3 if rate else 0)
    assert driver.engine.stats().shadow_samples == (3 if rate else 0)


def test_long_prompts_are_sampled_in_several_passes(make_engine: EngineMaker) -> None:
    driver = make_engine(settings=WATCHED, step_tokens=16)
    donate(driver)
    assert ask(driver, 1).outcome is Outcome.MATERIALISED
    settle(driver, 1)


def test_a_pool_full_of_cached_pages_still_has_room_for_a_sample(make_engine: EngineMaker) -> None:
    page = 8
    driver = make_engine(
        settings=WATCHED,
        page_size=page,
        pool_bytes=tiny("llama-gqa")[0].kv_shape.token_bytes * 64 * page,
    )
    donate(driver)
    begin = random_tokens(10 * page, 7)
    for filler in (8, 9, 10, 11):
        driver.run(random_tokens(12 * page, filler))
    driver.run(np.concatenate((begin, random_tokens(page, 12))))
    # Its exact pages are shared with the cache, so it leaves fewer behind than its sample needs.
    prompt = np.concatenate((begin, PASSAGE, random_tokens(4, 13)))
    report = driver.run(prompt, donate=False).report
    assert (report.outcome, report.exact_tokens) == (Outcome.MATERIALISED, len(begin))
    settle(driver, 1)


def test_a_failing_sample_harms_nobody(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_engine(settings=WATCHED)
    donate(driver)

    def broken(sample: object, cold: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(driver.engine.shadow, "_judge", broken)
    assert ask(driver, 1).outcome is Outcome.MATERIALISED
    deadline = time.monotonic() + 60
    while driver.engine.shadow.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ask(driver, 2).outcome is Outcome.MATERIALISED
    deadline = time.monotonic() + 60
    while driver.engine.shadow.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "dropped" in caplog.text


def test_the_default_takes_one_in_a_hundred() -> None:
    assert Settings().shadow_rate == 0.01
