"""Reports of load runs: one page that asks nobody, the same figures in every format."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sembench.load_results import LOAD_VERSION, LoadResult, LoadRow, Objective, summarise_load
from sembench.reports import LOAD_RENDERERS, build_load_report, write_report
from sembench.reports.load_page import render_load_html
from sembench.reports.load_text import render_load_csv, render_load_json, render_load_markdown
from sembench.reports.svg_frame import linear_ticks
from sembench.reports.svg_time import BUCKETS, piles
from tests.sembench.browser import screenshot
from tests.sembench.mock_runs import sembench

NASTY = '<script>alert("x")</script>|=cmd'


def row(position: int, **changes: Any) -> LoadRow:
    fields: dict[str, Any] = {
        "item_id": f"item{position}",
        "request_id": f"r{position}",
        "due_s": position / 10,
        "lag_ms": 1.0,
        "ttft_ms": 20.0 + position,
        "tpot_ms": 2.0,
        "latency_ms": 100.0 + position,
        "output_tokens": 8,
        "cached_tokens": 64,
        **changes,
    }
    return LoadRow(position=position, **fields)


ROWS = [
    row(0),
    *(row(number) for number in range(1, 30)),
    row(30, ttft_ms=500.0, latency_ms=900.0),
    row(31, error=NASTY, ttft_ms=None, tpot_ms=None, cached_tokens=None),
]
OBJECTIVE = Objective(ttft_ms=100.0)


def result(rows: list[LoadRow] = ROWS, *, objective: Objective = OBJECTIVE) -> LoadResult:
    window = {"warmup_seconds": 0.1, "cooldown_seconds": 0.0}
    return LoadResult.from_dict(
        {
            "load_version": LOAD_VERSION,
            "created_at_utc": "2026-01-01T00:00:00Z",
            "run": {"run_id": "r", "engine": "load", "backend_id": NASTY},
            "config": {"arrival": "poisson", "rate": 10.0, "concurrency": 4, **window},
            "environment": {},
            "aggregate": summarise_load(rows, objective, **window),
            "requests": [each.to_dict() for each in rows],
        }
    )


def test_the_page_asks_nobody_and_nothing_breaks_out_of_it() -> None:
    page = render_load_html(build_load_report(result()))
    assert "<script" not in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page


def test_every_request_is_drawn_once_as_what_became_of_it() -> None:
    report = build_load_report(result())
    kinds = report.kinds()
    assert sorted(kinds) == list(range(32))
    assert (kinds[0], kinds[1], kinds[30], kinds[31]) == ("uncounted", "in-time", "late", "failed")
    page = render_load_html(report)
    dots = re.findall(r'<circle class="dot ([\w-]+)"', page)
    # The failed request has no first token to draw; it stands among the arrivals.
    assert (dots.count("in-time"), dots.count("late"), dots.count("uncounted")) == (29, 1, 1)
    assert 'class="pile failed"' in page
    assert "objective, 100 ms: met by 96.7% of answers" in page


def test_every_format_states_the_same_figures() -> None:
    report = build_load_report(result())
    summary = json.loads(render_load_json(report))
    aggregate = summary["aggregate"]
    assert aggregate["slo_attainment"] == pytest.approx(29 / 31)
    goodput = f"{aggregate['goodput_requests_per_second']:.3g}"
    for text in (render_load_html(report), render_load_markdown(report)):
        assert f"Goodput {goodput}" in text
    lines = list(csv.DictReader(io.StringIO(render_load_csv(report))))
    assert [line["request_id"] for line in lines] == [each.request_id for each in ROWS]
    assert lines[31]["ttft_ms"] == "", "not measured is empty, never 0"
    failing = {check["label"] for check in summary["checks"] if check["good"] is False}
    assert failing == {"Failed requests"}


def test_a_run_without_an_objective_or_without_answers_says_so() -> None:
    no_answer = [row(number, error="HTTP 503", ttft_ms=None, tpot_ms=None) for number in range(9)]
    report = build_load_report(result(no_answer, objective=Objective()))
    verdicts = {check.label: check.good for check in report.checks}
    assert verdicts["An objective was set"] is False
    assert verdicts["Failed requests"] is False
    assert "No request was answered." in render_load_html(report)
    assert "not measured" in render_load_markdown(report)
    empty = build_load_report(result([]))
    assert all(renderer(empty) for renderer in LOAD_RENDERERS.values())


def test_a_run_that_was_taken_up_is_marked() -> None:
    rows = [row(0), row(1), row(2, session_s=0.15)]
    verdicts = {each.label: each for each in build_load_report(result(rows)).checks}
    assert verdicts["The run was not interrupted"].good is False
    assert verdicts["The run was not interrupted"].value == "2 sessions"


def test_piles_lose_no_event_and_keep_within_the_frame() -> None:
    events = [(number / 7, "ab"[number % 2]) for number in range(100)]
    drawn = piles(events, ("a", "b"), end=99 / 7)
    counts = [int(text) for text in re.findall(r"<title>(\d+) [ab],", drawn)]
    assert sum(counts) == 100
    assert len(counts) <= 2 * BUCKETS
    tops = [
        float(text) for text in re.findall(r'<rect class="pile \w" x="[\d.]+" y="([\d.]+)"', drawn)
    ]
    assert min(tops) >= 16


@pytest.mark.parametrize("high", [0.003, 0.7, 1.0, 6.0, 7.5, 99.0, 12345.0])
def test_ticks_are_few_round_and_inside(high: float) -> None:
    ticks = linear_ticks(high)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] == 0.0
    assert ticks[-1] <= high * (1 + 1e-9)


def test_the_command_knows_a_load_result_and_replays_refuse_it(tmp_path: Path) -> None:
    source = tmp_path / "load.json"
    data = result()
    source.write_text(
        json.dumps(
            {
                "load_version": LOAD_VERSION,
                "created_at_utc": data.created_at_utc,
                "run": data.run.to_dict(),
                "config": dict(data.config),
                "environment": {},
                "aggregate": dict(data.aggregate),
                "requests": [each.to_dict() for each in data.requests],
            }
        )
    )
    paths = [tmp_path / f"out{suffix}" for suffix in LOAD_RENDERERS]
    assert sembench("report", "--result", source, "--output", *paths).exit_code == 0
    assert all(path.stat().st_size for path in paths)
    assert "How much of it met the objective?" in sembench("report", "--result", source).stdout
    refused = sembench("assert-result-gates", "--result", source)
    assert refused.exit_code == 2
    assert "load result" in str(refused.exception)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_the_page(tmp_path: Path, scheme: str) -> None:
    page = tmp_path / "r.html"
    write_report(build_load_report(result()), page)
    assert screenshot(page, scheme=scheme).stat().st_size > 10_000
