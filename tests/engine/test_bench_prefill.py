"""The prefill benchmark measures what it says, on a model too small to be slow."""

from __future__ import annotations

from pathlib import Path

from semblend.cli.bench_prefill import POLICIES, add_rows, draw, measure
from semblend.cli.benchmark_report import BenchmarkReport
from tests.engine.conftest import EngineMaker
from tests.engine.models import tiny


def test_every_case_is_timed_in_every_round_and_reported(
    make_engine: EngineMaker, tmp_path: Path
) -> None:
    driver = make_engine()
    times = measure(driver.engine, tiny("llama-gqa")[1], 512, repeats=2, seed=1)
    assert set(times.seconds) == {"cold", "plain", "miss", "lookup", *POLICIES}
    assert all(len(seconds) == 2 for seconds in times.seconds.values())
    report = BenchmarkReport("prefill", command="test")
    add_rows(report, 512, times, judged=True)
    metrics = {row.metric: row for row in report.rows}
    assert metrics["speed-up, 0 % recomputed"].value == times.ratio("cold", "0 %")
    assert metrics["cold against plain transformers SDPA"].target == 1.1
    draw({512: times, 1024: times}, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000
