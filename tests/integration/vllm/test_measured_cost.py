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


def measured_again(engine) -> EngineTimes | None:
    """What a start would measure; nothing may be in the cache."""
    engine.worker.take_report()
    engine.worker._served = False
    engine.worker.engine_ready()
    report = engine.worker.take_report()
    return None if report is None else report.engine_times


def test_the_engine_was_measured_before_its_first_answer(engine):
    cost = engine.scheduler.planner.pipeline.cost
    assert cost.measured
    assert engine.scheduler.clock.cost is cost
    assert cost.attention_tokens > 0


def test_measuring_leaves_nothing_behind(engine):
    engine.forget_donors()
    engine.forget_prefixes()
    free, cold = engine.free_blocks(), engine.cold(target(920))
    engine.forget_prefixes()
    assert measured_again(engine) is not None
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
    assert measured_again(engine) is None


def test_planted_faults_the_setting_and_a_cpu_turn_it_off(engine, monkeypatch):
    setup = engine.worker._setup
    for off in ({"measures": False}, {"measures": None}, {"faults": "copy:1:1"}):
        monkeypatch.setattr(engine.worker, "_setup", replace(setup, **off))
        assert measured_again(engine) is None


def test_an_engine_that_has_served_is_not_measured_again(engine):
    """Whatever makes vLLM warm up once more: the cache holds somebody's K/V by then."""
    first = engine.run(target(970), hints=HINTS)
    engine.worker.take_report()
    engine.worker.engine_ready()
    assert engine.worker.take_report() is None
    again = engine.run(target(970), hints=HINTS)
    assert again.tokens == first.tokens


def passes_of(engine, monkeypatch) -> int:
    """Passes of one measurement, in as few rounds as there are."""
    passes = 0
    run = speed_probe._Trial._pass

    def counted(self, *runs):
        nonlocal passes
        passes += 1
        run(self, *runs)

    with monkeypatch.context() as patched:
        patched.setattr(speed_probe._Trial, "_pass", counted)
        patched.setattr(speed_probe._Trial, "_size", lambda self: 64)
        patched.setattr(speed_probe, "are_settled", lambda runs: True)
        measured_again(engine)
    return passes


@pytest.mark.parametrize("action", ["_donate", "_copy"])
def test_a_rank_that_cannot_copy_runs_the_passes_that_others_wait_for(engine, monkeypatch, action):
    held, expected = len(engine.worker.donors), passes_of(engine, monkeypatch)
    assert expected == 5 * (speed_probe.ROUNDS + 1)

    def fail(self, *_):
        raise MemoryError("no host memory on this rank")

    monkeypatch.setattr(speed_probe._Trial, action, fail)
    assert passes_of(engine, monkeypatch) == expected
    assert measured_again(engine) is None
    assert len(engine.worker.donors) == held


def test_ranks_measure_equally_often_and_all_or_none(engine, monkeypatch):
    class Ranks:
        """Others, of which one never settles, and then one that could not measure."""

        asked, rank, count = 0, 0, 2

        def all_true(self, flags):
            self.asked += 1
            return [False] * len(flags) if len(flags) == 1 else [False, flags[1]]

        def summed(self, values):
            return values

    ranks = Ranks()
    monkeypatch.setattr(engine.worker, "_ranks", ranks)
    assert measured_again(engine) is None
    assert ranks.asked == speed_probe.MOST_ROUNDS + 1


def test_a_slow_engine_is_measured_once_and_starts(engine, monkeypatch):
    monkeypatch.setattr(speed_probe, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(speed_probe._Trial, "_size", lambda self: 64)
    assert passes_of(engine, monkeypatch) == 5 * 2
    assert measured_again(engine) is not None


def test_times_measured_before_a_sleep_are_used_after_it(make_engine, monkeypatch):
    monkeypatch.setenv("SEMBLEND_MEASURE_SPEED", "1")
    engine = make_engine("llama", audit_path=None)
    engine.worker.before_unmapping()
    engine.donate(DONOR)
    assert engine.scheduler.planner.pipeline.cost.measured


def test_times_of_weights_that_are_gone_reuse_nothing(make_engine, monkeypatch):
    monkeypatch.setenv("SEMBLEND_MEASURE_SPEED", "1")
    engine = make_engine("llama", audit_path=None)
    engine.worker.weights_changed("an update before the first request")
    engine.donate(DONOR)
    prompt = target(980)
    answer = engine.run(prompt, hints=HINTS)
    assert answer.semblend["reused_tokens"] == 0
    assert answer.tokens == engine.cold(prompt).tokens
