"""The prefill benchmark measures what it says, on a model too small to be slow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.miss_cost import MissCost, add_miss_rows, measure_miss
from semblend.cli.bench_prefill import POLICIES, _first_token, add_rows, draw, measure
from semblend.cli.main import app
from semblend.engine.api import RequestReport
from tests.engine.conftest import EngineMaker
from tests.engine.models import tiny


def test_every_case_is_timed_in_every_round_and_reported(
    make_engine: EngineMaker, tmp_path: Path
) -> None:
    driver = make_engine()
    times = measure(driver.engine, tiny("llama-gqa")[1], 512, repeats=2, seed=1)
    assert set(times.seconds) == {"cold", "plain", "miss", "lookup", *POLICIES}
    assert all(len(seconds) == 2 for seconds in times.seconds.values())
    misses = measure_miss(driver.engine, _first_token, 512, pairs=3, seed=1)
    report = BenchmarkReport("prefill", command="test")
    add_rows(report, 512, times, misses, judged=True)
    metrics = {row.metric: row for row in report.rows}
    assert metrics["speed-up, 0 % recomputed"].value == times.ratio("cold", "0 %")
    assert metrics["cold against plain transformers SDPA"].target == 1.1
    draw({512: times, 1024: times}, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000


def test_a_miss_is_measured_beside_a_capture_and_without_one(make_engine: EngineMaker) -> None:
    engine = make_engine().engine
    sent: list[tuple[bool, bool]] = []

    def first_token(engine: Any, tokens: Any, *, reuse: bool, donate: bool) -> RequestReport:
        before = engine.donors.busy_seconds
        report = _first_token(engine, tokens, reuse=reuse, donate=donate)
        engine.donors.wait()
        assert (engine.donors.busy_seconds > before) == donate, "kept exactly where asked"
        sent.append((reuse, donate))
        return report

    cost = measure_miss(engine, first_token, 96, pairs=4, seed=1)
    assert len(cost.on) == len(cost.off) == len(cost.capture) == 4
    # What a prompt leaves running is decided by whether the next one is measured with SemBlend on.
    for (_, donate), (reuse, _) in itertools.pairwise(sent):
        assert donate == reuse
    assert [reuse for reuse, _ in sent[1:]] == [True, False, False, True] * 2
    assert len(engine.donors) == 0


def test_a_miss_that_costs_two_percent_fails_from_four_thousand_tokens_on() -> None:
    cost = MissCost(off=[1.0, 2.0, 3.0], on=[1.02, 2.04, 3.06], capture=[0.01] * 3)
    for length, judged in ((1024, False), (4096, True)):
        report = BenchmarkReport("prefill", command="test")
        add_miss_rows(report, "case", cost, length=length, judged=True)
        row = report.rows[0]
        assert row.value == pytest.approx(0.02)
        assert row.ok is (False if judged else None)


@pytest.mark.parametrize("lengths", ["", "4096,", "four", "100"])
def test_lengths_that_cannot_be_used_are_named(lengths: str) -> None:
    done = CliRunner().invoke(app, ["bench", "prefill", "--lengths", lengths])
    assert done.exit_code == 2
    assert "--lengths" in done.output
