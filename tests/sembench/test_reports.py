"""Reports say what the result says, in every format, and nothing in a result can break out."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sembench import metrics
from sembench.reports import RENDERERS, build_report, write_report
from sembench.reports.console import print_report
from sembench.reports.html_page import MAX_STRIPS, render_html
from sembench.reports.svg import DistributionSeries, Point, distributions, scatter, shares, strip
from sembench.results import RequestRow, Result, RunMetadata, write_result
from tests.sembench.browser import screenshot
from tests.sembench.mock_runs import sembench

HOSTILE = """</title><script>alert('x')</script><img src=x onerror="y">&amp;|`*[a](b)=1+1"""


def row(item: str, **fields: Any) -> RequestRow:
    base: dict[str, Any] = {
        "item_id": item,
        "dataset": "d",
        "transform": "rag_reorder",
        "prompt_tokens": 160,
        "engine_prompt_tokens": 160,
        "total_blocks": 10,
        "exact_blocks": 2,
        "exact_tokens": 32,
        "exact_block_hit_rate": 0.2,
        "block_strip": "xx..sscb..",
        "cached_tokens": 128,
        "exact_confirmed_tokens": 32,
        "fuzzy_confirmed_tokens": 96,
        "backend_confirmed_blocks": 8,
        "backend_confirmed_tokens": 128,
        "ttft_ms": 10.0,
        "cold_ttft_ms": 40.0,
        "ttft_speedup": 4.0,
        "quality_pass": True,
        "quality_score": 1.0,
        "output_text": "an answer",
    }
    return RequestRow(**{**base, **fields})


def result(*rows: RequestRow) -> Result:
    return Result(
        run=RunMetadata(run_id="run-1", engine="gateway", manifest_sha256="m", backend_id="mine"),
        created_at_utc="2026-01-01T00:00:00Z",
        config={"model": "a-model", "block_size": 16},
        environment={"platform": "p"},
        aggregate=metrics.aggregate(rows),
        by_transform=metrics.by_transform(rows),
        requests=rows,
    )


RESULT = result(
    row("one"),
    row("two", ttft_ms=20.0, ttft_speedup=2.0),
    row(
        "three",
        transform="negative_control",
        negative_control=True,
        cached_tokens=0,
        exact_confirmed_tokens=0,
        fuzzy_confirmed_tokens=0,
        backend_confirmed_blocks=0,
        backend_confirmed_tokens=0,
        ttft_ms=41.0,
        ttft_speedup=40 / 41,
    ),
)


class Seen(HTMLParser):
    """Every tag, attribute and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def hostile_result() -> Result:
    """A result every text of which tries to break out."""
    texts = {
        field.name: HOSTILE
        for field in fields(RequestRow)
        if str(field.type) in ("str", "str | None") and field.name != "block_strip"
    }
    bad = replace(RESULT.requests[0], **texts, block_strip="x<>&s")
    failed = replace(bad, item_id=HOSTILE + "2", negative_control=True)
    run = replace(
        RESULT.run,
        **{
            field.name: HOSTILE
            for field in fields(RunMetadata)
            if str(field.type).startswith("str")
        },
    )
    made = result(bad, failed)
    return replace(
        made,
        run=run,
        created_at_utc=HOSTILE,
        config={"model": HOSTILE, "command": HOSTILE, "tokenizer": HOSTILE},
        environment={"platform": HOSTILE, "packages": {HOSTILE: HOSTILE}},
        engine={"flags": {"serve_command": HOSTILE, "env": {HOSTILE: HOSTILE}}},
    )


def test_nothing_in_a_result_can_break_out_of_the_page() -> None:
    page = render_html(build_report(hostile_result(), title=HOSTILE))
    seen = Seen(page)
    assert seen.open == []
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]


@pytest.mark.parametrize("make", [lambda: RESULT, hostile_result, lambda: result()])
def test_the_page_asks_nobody_for_anything(make: Any) -> None:
    page = render_html(build_report(make()))
    seen = Seen(page)
    loading = {"src", "href", "data", "action", "srcset", "xlink:href", "poster", "background"}
    assert not loading & {name for name, _ in seen.attributes}
    assert not {"link", "iframe", "object", "embed", "script"} & set(seen.tags)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes


def test_the_page_shows_each_request_and_each_question() -> None:
    report = build_report(RESULT)
    page = render_html(report)
    assert page.count('viewBox="0 0 10 1"') == 3
    assert page.count("<circle") == 3
    for question in report.questions:
        assert question.title in page
    assert "Negative controls" in page
    assert "run-1" in page


def test_a_long_result_draws_a_bounded_number_of_strips_and_says_so() -> None:
    page = render_html(build_report(result(*(row(f"i{n}") for n in range(MAX_STRIPS + 5)))))
    assert page.count('viewBox="0 0 10 1"') == MAX_STRIPS
    assert f"the first {MAX_STRIPS} of {MAX_STRIPS + 5}" in page


def test_what_was_not_measured_says_so_and_is_never_zero() -> None:
    offline = result(RequestRow(item_id="a", dataset="d", transform="t", total_blocks=4))
    report = build_report(offline)
    assert all(check.good is None for check in report.checks if check.label != "Failed requests")
    page = render_html(report)
    assert page.count("not measured") >= 5
    assert "Time was not compared" in page


def test_failures_are_marked_as_such() -> None:
    bad = result(
        row("a", donor_fact_leak=True), row("b", repeat_contaminated=True, error="HTTP 500")
    )
    page = render_html(build_report(bad))
    assert "states the donor&#x27;s fact" in page or "states the donor's fact" in page
    assert page.count('class="verdict bad">fails') == 3


@pytest.mark.parametrize("suffix", sorted(RENDERERS))
def test_every_format_is_written_and_keeps_the_title(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"report{suffix}"
    write_report(build_report(RESULT, title="My title"), path)
    text = path.read_text(encoding="utf-8")
    assert suffix == ".csv" or "My title" in text


def test_csv_has_a_line_a_request_and_no_cell_that_a_spreadsheet_would_run() -> None:
    made = result(row("=1+1", output_text="@SUM(A1)\nmore", planned_donor_ids=("a", "b")))
    lines = list(csv.DictReader(io.StringIO(RENDERERS[".csv"](build_report(made)))))
    assert len(lines) == 1
    assert lines[0]["item_id"] == "'=1+1"
    assert lines[0]["output_text"].startswith("'@")
    assert json.loads(lines[0]["planned_donor_ids"]) == ["a", "b"]
    assert lines[0]["negative_control"] == "false"
    assert lines[0]["plan_ms"] == ""


def test_json_holds_what_the_result_holds_but_the_rows() -> None:
    data = json.loads(RENDERERS[".json"](build_report(RESULT)))
    assert data["aggregate"] == RESULT.aggregate
    assert data["paired"]["pairs"] == 3
    assert "requests" not in data
    assert len(data["questions"]) == 4


def test_markdown_tables_survive_any_text() -> None:
    text = RENDERERS[".md"](build_report(hostile_result(), title=HOSTILE))
    assert not re.search(r"(?<!\\)<", text)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_the_terminal_report_survives_any_text() -> None:
    out = io.StringIO()
    print_report(
        build_report(hostile_result(), title="[red]" + HOSTILE), Console(file=out, width=200)
    )
    assert "[red]" in out.getvalue()


def test_charts_of_nothing_are_nothing() -> None:
    assert scatter([], x_label="x", y_label="y") == ""
    assert (
        distributions([DistributionSeries(name="a", kind="cold", values=[0.0])], x_label="x") == ""
    )
    assert strip("") == ""


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [0.001, 1e6], [1.0, 1.2]])
def test_charts_keep_every_mark_inside_the_frame(values: list[float]) -> None:
    points = [Point(x=value, y=value, kind="hit", title="t") for value in values]
    drawing = scatter(points, x_label="x", y_label="y")
    for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', drawing):
        assert 58 <= float(x) <= 544
        assert 16 <= float(y) <= 294
    assert drawing.count("<circle") == len(values)


def test_a_strip_merges_runs_and_covers_every_block() -> None:
    widths = [int(width) for width in re.findall(r'width="(\d+)"', strip("xx..s"))]
    assert widths == [2, 2, 1]


def test_shares_never_exceed_the_whole() -> None:
    widths = [
        float(w) for w in re.findall(r'width="([\d.]+)"', shares([("a", 0.8, ""), ("b", 0.9, "")]))
    ]
    assert sum(widths) == pytest.approx(1.0)


def test_the_command_writes_all_formats_at_once_or_prints(tmp_path: Path) -> None:
    source = tmp_path / "r.json"
    write_result(source, RESULT)
    paths = [tmp_path / f"out{suffix}" for suffix in RENDERERS]
    assert sembench("report", "--result", source, "--output", *paths).exit_code == 0
    assert all(path.stat().st_size for path in paths)
    printed = sembench("report", "--result", source)
    assert "Did the backend really reuse them?" in printed.stdout
    refused = sembench("report", "--result", source, "--output", tmp_path / "r.pdf")
    assert refused.exit_code == 2


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_the_page(tmp_path: Path, scheme: str) -> None:
    page = tmp_path / "r.html"
    write_report(build_report(RESULT), page)
    assert screenshot(page, scheme=scheme).stat().st_size > 10_000
