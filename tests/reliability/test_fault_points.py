"""Every fault point in the embedded engine: answered as cold, nothing leaks, the ledger says why.

A donor is kept, pushed to disk by another one and then reused. A fault is planted either
while the donor is kept or while it is reused; whatever it is, the answer is the cold one
(or, where a fault only delays, the one that reuse gives).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import semblend.engine.admission as admission_module
import semblend.engine.engine as engine_module
from semblend.core.faults import FaultPoint, planted
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Span
from semblend.core.tokens import TokenArray
from semblend.engine.admission import Admission
from semblend.engine.api import FinishReason, TokenSource
from semblend.engine.handle import GenerationResult
from semblend.engine.materialise import load_spans
from semblend.engine.segmented import compute, runs_of_plan
from tests.engine.conftest import Driver, EngineMaker, same
from tests.engine.donors import DonorShelf, cold_kv, hand_plan, make_pool, make_table
from tests.engine.models import random_tokens, tiny
from tests.engine.test_engine import behind
from tests.reliability.fault_cases import KEEPING, REUSING, Case, name_the_others
from tests.reliability.fault_results import record
from tests.reliability.levels import Level, leaks, level

TOKEN_BYTES = tiny("llama-gqa")[0].kv_shape.token_bytes
TURNS = 9
DONOR, FILLER, TARGET = behind(1), random_tokens(len(behind(1)), 77), behind(5)


CASES = [
    Case(point=FaultPoint.INDEX_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.INDEX_READ, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.PLAN, phase=REUSING, reason=DeclineReason.INTERNAL_ERROR),
    Case(point=FaultPoint.LEASE, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_READ, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_WRITE, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.TIER_WRITE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.CHECKSUM, phase=KEEPING, reason=DeclineReason.CORRUPT_DONOR),
    Case(point=FaultPoint.CHECKSUM, phase=REUSING, reason=DeclineReason.CORRUPT_DONOR),
    Case(point=FaultPoint.DISK_READ, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.DISK_FULL, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.SLOW_DISK, phase=KEEPING, reason=None),
    Case(point=FaultPoint.SLOW_DISK, phase=REUSING, reason=None),
    Case(point=FaultPoint.ALLOCATION, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.ALLOCATION, phase=REUSING, reason=DeclineReason.DONOR_GONE),
    Case(point=FaultPoint.POOL, phase=REUSING, reason=None, times=":1:3"),
    Case(point=FaultPoint.COPY, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(point=FaultPoint.NESTED_PASS, phase=REUSING, reason=DeclineReason.MATERIALISATION_FAILED),
    Case(point=FaultPoint.CAPTURE, phase=KEEPING, reason=DeclineReason.NO_MATCH),
    Case(point=FaultPoint.KILLED_WORKER, phase=KEEPING, reason=DeclineReason.NO_MATCH),
]


@pytest.fixture(params=[False, True], ids=["at-once", "layerwise"])
def column(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How spans are loaded: before the pass, or by it as on a GPU; where the table says so."""
    monkeypatch.setattr(engine_module, "Admission", partial(Admission, layerwise=request.param))
    if request.param:
        monkeypatch.delattr(admission_module, "load_spans")  # nobody goes the other way
    return "layerwise" if request.param else "embedded"


def engine_with_disk(make_engine: EngineMaker, folder: Path) -> Driver:
    """Room for one donor in memory; the next one pushes it to disk."""
    return make_engine(
        host_donor_bytes=TOKEN_BYTES * (len(DONOR) + 40),
        disk_donor_bytes=TOKEN_BYTES * 4000,
        donor_folder=folder,
    )


def keep(driver: Driver) -> None:
    """Keep the donor, and push it to disk."""
    driver.run(DONOR)
    driver.run(FILLER)


def reuse(driver: Driver, **options: Any) -> GenerationResult:
    """The request that would reuse it; it is not kept itself, so that it can be sent again."""
    driver.engine.flush_prefix_cache()
    return driver.run(TARGET, donate=False, **options)


def assert_books_agree(driver: Driver) -> None:
    """Index and library know the same donors, and every segment held is some donor's."""
    library = driver.engine.donors
    assert len(library) == driver.engine.pipeline.stats().donors
    held = {key.digest for key in driver.engine._tiers.memory[0].keys()}  # noqa: SIM118
    assert held <= set(library._users)
    assert all(library._users.values())


def assert_whole(driver: Driver, folder: Path) -> None:
    """Pages, leases, the ledger, both sides' books and the disk are as if nothing had been."""
    engine = driver.engine
    engine.donors.wait()
    assert driver.leaked_pages() == 0
    assert engine.pipeline.ledger.totals().open_requests == 0
    assert [tier.leased for tier in engine._tiers.stats()] == [0, 0]
    assert_books_agree(driver)
    engine.drop_donors()
    stats = engine.stats()
    assert (stats.donors, stats.tier_bytes) == (0, {"host": 0, "disk": 0})
    assert engine.pipeline.stats().stored_tokens == 0
    assert [name for name in os.listdir(folder) if name != "semblend.lock"] == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_is_a_cold_answer_and_leaves_nothing_behind(
    case: Case, column: str, make_engine: EngineMaker, tmp_path: Path
) -> None:
    driver = engine_with_disk(make_engine, tmp_path)
    keep(driver)
    reused, cold = reuse(driver), driver.cold(TARGET)
    assert reused.report.outcome is Outcome.MATERIALISED, "without a fault it is reused"
    driver.engine.drop_donors()
    before = Counter(driver.engine.pipeline.ledger.totals().reasons)
    with planted(case.spec) as while_keeping:
        if case.phase == KEEPING:
            keep(driver)
    if case.phase == REUSING:
        keep(driver)
    with planted(case.spec) as while_reusing:
        if case.phase == REUSING:
            answer = reuse(driver)
    if case.phase == KEEPING:
        answer = reuse(driver)
    assert while_keeping.fired[case.point] + while_reusing.fired[case.point] > 0
    assert_books_agree(driver)
    assert answer.reason is FinishReason.LENGTH
    if case.reason is None:
        assert answer.report.outcome is Outcome.MATERIALISED
        assert same(answer, reused)
    else:
        assert (answer.report.reason, answer.report.reused_tokens) == (case.reason, 0)
        assert answer.report.outcome is case.reason.outcome
        assert same(answer, cold)
        if case.reason is not DeclineReason.NO_MATCH:  # then there was nothing to decline
            after = driver.engine.pipeline.ledger.totals().reasons
            assert after[case.reason] == before[case.reason] + 1
    driver.engine.drop_donors()
    keep(driver)
    assert reuse(driver).report.outcome is Outcome.MATERIALISED, "and the next one is served"
    assert_whole(driver, tmp_path)
    case.record(column, served="served, later")


def test_a_ledger_that_fails_claims_no_reuse(
    column: str, make_engine: EngineMaker, tmp_path: Path
) -> None:
    driver = engine_with_disk(make_engine, tmp_path)
    keep(driver)
    reused = reuse(driver)
    tokens = driver.engine.pipeline.ledger.totals().tokens[Outcome.MATERIALISED]
    with planted("settlement"):
        answer = reuse(driver)
    assert same(answer, reused)
    totals = driver.engine.pipeline.ledger.totals()
    assert totals.tokens[Outcome.MATERIALISED] == tokens
    assert totals.reasons[DeclineReason.INTERNAL_ERROR] == 1
    assert_whole(driver, tmp_path)
    record(column, FaultPoint.SETTLEMENT, "served, not counted as reuse")


def test_points_that_a_load_does_not_reach_are_tried_where_they_are() -> None:
    elsewhere = (
        FaultPoint.TRANSPORT_READ,
        FaultPoint.TRANSPORT_WRITE,
        FaultPoint.EVENT_BUS,
        FaultPoint.CLOCK,
    )
    tried = {case.point for case in CASES} | {FaultPoint.SETTLEMENT}
    name_the_others("layerwise", tried, dict.fromkeys(elsewhere, "before any load: as at once"))


def assert_as_reported(answer: GenerationResult, kept: dict[str, TokenArray]) -> None:
    """The first token is what the reported spans give, put in place by hand from cold K/V.

    Which donor serves, and where spans end, depends on what the faults have left.
    """
    model, _ = tiny("llama-gqa")
    shelf, spans = DonorShelf(), []
    for part in answer.report.strip:
        if part.source is TokenSource.REUSED and part.donor_id is not None:
            donor = kept[part.donor_id.split(".")[0]]
            shelf.add(part.donor_id, donor, cold_kv(model, donor), 64)
            spans.append(
                # The document stands at the same place in all of these prompts.
                Span(
                    donor_id=part.donor_id,
                    donor_start=part.start,
                    target_start=part.start,
                    length=part.end - part.start,
                )
            )
    pool, plan = make_pool(model), hand_plan(TARGET, spans)
    table = make_table(pool, len(TARGET))
    load_spans(plan, TARGET, table=table, pool=pool, rotary=model.rotary, donors=shelf)
    logits = compute(model, pool, runs_of_plan(plan, TARGET, table))[-1]
    expected = torch.log_softmax(logits.float(), dim=-1)
    (event,) = answer.events
    assert event.token_id == int(expected.argmax()), answer.report
    assert event.logprob == pytest.approx(float(expected.max()), abs=1e-4), answer.report


def test_everything_failing_a_little_is_survived(
    column: str, make_engine: EngineMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All points at once, one reach in twenty: right answers, and nothing is left of a turn.

    One token each: a later one may rest on a first that was reused and then go on as cold.
    """
    caplog.set_level(logging.CRITICAL)  # or pytest keeps every traceback, and its frames
    driver = engine_with_disk(make_engine, tmp_path)
    driver.engine.pipeline.ledger.recent_limit = 16  # full after a turn, so that it is no leak
    donors = [behind(100 + number) for number in range(3)]
    kept: dict[str, TokenArray] = {}
    answers: list[GenerationResult] = []
    spec = ",".join(f"{point}:0.05" for point in FaultPoint if point is not FaultPoint.CLOCK)
    reasons: Counter[str] = Counter()
    levels: list[Level] = []
    fired = 0
    for turn in range(TURNS):
        with planted(spec, seed=turn) as faults:
            for number in range(9):
                donor = donors[number % 3]
                kept[driver.run(donor).report.request_id] = donor
                answers.append(reuse(driver, max_tokens=1))
        fired += sum(faults.fired.values())
        while answers:
            answer = answers.pop()
            assert_as_reported(answer, kept)
            reasons[answer.report.reason or answer.report.outcome.value] += 1
        kept.clear()
        assert_whole(driver, tmp_path)
        levels.append(level())
    assert fired > 10 * TURNS
    assert len(reasons) > 3, reasons
    assert leaks(levels) == []


def test_many_requests_at_once_are_all_answered_while_everything_fails(
    make_engine: EngineMaker, tmp_path: Path
) -> None:
    driver = engine_with_disk(make_engine, tmp_path)
    driver.run(DONOR)
    spec = ",".join(f"{point}:0.08" for point in FaultPoint)
    with planted(spec, seed=1) as faults:
        for turn in range(4):
            handles = [driver.submit(behind(200 + number % 5)) for number in range(12)]
            handles += [driver.submit(random_tokens(90, turn * 50 + n)) for n in range(6)]
            for handle in handles[::5]:
                handle.cancel()
            ends = [handle.result().reason for handle in handles]
            assert set(ends) <= {FinishReason.LENGTH, FinishReason.CANCELLED}
            assert all(end is FinishReason.LENGTH for n, end in enumerate(ends) if n % 5), (
                "only those that were cancelled are"
            )
        driver.engine.donors.wait()
    assert len(faults.fired) > 4, "which points are reached depends on who is first"
    assert_whole(driver, tmp_path)
