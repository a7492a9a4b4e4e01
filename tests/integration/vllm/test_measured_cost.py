"""The engine is measured at start, and what it measured decides what is reused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semblend.integration.worker import speed_probe
from semblend.planning.engine_times import EngineTimes
from tests.integration.models import joined, random_tokens

PASSAGE = random_tokens(300, seed=901)
DONOR = joined(random_tokens(40, seed=902), PASSAGE, random_tokens(9, seed=903))
HINTS = {"capture": False}
PAYS = EngineTimes(
    small_tokens=16,
    small_s=0.021,
    half_tokens=128,
    half_s=0.148,
    full_tokens=256,
    full_s=0.276,
    deep_before=1_000,
    deep_s=0.15,
    holes=8,
    holes_s=0.16,
    few_tokens=16,
    few_s=0.0005,
    copy_tokens=512,
    copy_s=0.001,
    spans=8,
    spans_s=0.002,
)
SPANS_TAKE_LONGER = replace(PAYS, spans_s=5.0)
NOTHING_PAYS = replace(PAYS, copy_s=1.0, spans_s=1.0)


def target(seed: int):
    return joined(random_tokens(90, seed=seed), PASSAGE, random_tokens(31, seed=seed + 1))


@pytest.fixture
def engine(make_engine, monkeypatch):
    monkeypatch.setenv("SEMBLEND_MEASURE_SPEED", "1")
    engine = make_engine("llama", audit_path=None)
    engine.donate(DONOR)
    return engine


def test_the_engine_was_measured_before_its_first_answer(engine):
    cost = engine.scheduler.planner.pipeline.cost
    assert cost.measured
    assert engine.scheduler.clock.cost is cost
    assert cost.attention_tokens > 0


def test_measuring_leaves_nothing_behind(engine):
    engine.forget_donors()
    engine.forget_prefixes()
    free, cold = engine.free_blocks(), engine.cold(target(920))
    engine.worker.engine_ready()
    assert not len(engine.worker.donors)
    assert not engine.worker.donors.take_lost()
    assert engine.free_blocks() == free
    assert engine.cold(target(920)).tokens == cold.tokens


def test_what_pays_is_reused_and_what_does_not_is_declined_with_its_reason(engine):
    engine.scheduler._use_times(PAYS)
    assert engine.run(target(930), hints=HINTS).semblend["outcome"] == "materialised"
    engine.scheduler._use_times(SPANS_TAKE_LONGER)
    prompt = target(940)
    answer = engine.run(prompt, hints=HINTS)
    assert answer.semblend["reason"] == "not_worth_it"
    assert "measured at start" in answer.semblend["detail"]
    assert answer.tokens == engine.cold(prompt).tokens


def metric(engine, name: str, **labels: str) -> float:
    return sum(
        found.value
        for found in engine.llm.get_metrics()
        if found.name == name and labels.items() <= found.labels.items()
    )


def declined(engine) -> float:
    return metric(engine, "vllm:semblend_declines", reason="not_worth_it")


def test_declines_and_the_measurement_are_in_the_metrics(engine):
    engine.scheduler._use_times(SPANS_TAKE_LONGER)
    before = declined(engine)
    engine.run(target(950), hints=HINTS)
    engine.run(target(960), hints=HINTS)  # counts are exported with the next step
    assert declined(engine) > before
    assert metric(engine, "vllm:semblend_cost_measured") == 1


def test_times_that_do_not_fit_together_leave_the_costs_as_they_were(engine):
    before = engine.scheduler.planner.pipeline.cost
    engine.scheduler._use_times(replace(PAYS, full_s=0.0))
    assert engine.scheduler.planner.pipeline.cost is before


def test_where_nothing_would_ever_pay_reuse_can_still_be_tried(engine, caplog):
    """A tiny model on a fast device: declining all of it would tell an operator nothing."""
    before = engine.scheduler.planner.pipeline.cost
    engine.scheduler._use_times(NOTHING_PAYS)
    assert engine.scheduler.planner.pipeline.cost is before
    assert "reuse makes no answer faster here" in caplog.text


def test_a_measurement_that_fails_is_none(engine, monkeypatch):
    """Start-up goes on, with constants."""

    def fail(self):
        raise RuntimeError("no")

    monkeypatch.setattr(speed_probe._Trial, "run", fail)
    engine.worker.take_report()
    engine.worker.engine_ready()
    report = engine.worker.take_report()
    assert report is None or report.engine_times is None


def test_planted_faults_the_setting_and_a_cpu_turn_it_off(engine, monkeypatch):
    setup = engine.worker._setup
    for off in ({"measures": False}, {"measures": None}, {"faults": "copy:1:1"}):
        monkeypatch.setattr(engine.worker, "_setup", replace(setup, **off))
        engine.worker.take_report()
        engine.worker.engine_ready()
        report = engine.worker.take_report()
        assert report is None or report.engine_times is None
