"""The report of a load run as one self-contained HTML page."""

from __future__ import annotations

from sembench.load_results import LoadRow
from sembench.reports import page_parts as parts
from sembench.reports import svg
from sembench.reports.load_report import KINDS, TIMES, LoadReport, arrival_text
from sembench.reports.svg_time import piles, timeline

_MEANING = {
    "in-time": "answered within the objective",
    "late": "answered too late",
    "failed": "failed",
    "uncounted": "warm-up or cool-down, not counted",
}
_COLOURS = {"ttft_ms": "warm", "tpot_ms": "negative", "latency_ms": "cold"}


def render_load_html(report: LoadReport) -> str:
    result = report.result
    return parts.page(
        report.title,
        (
            parts.head(
                report.title,
                (
                    f"run {result.run.run_id}",
                    arrival_text(result.config),
                    str(result.config.get("model") or "no model"),
                    result.created_at_utc,
                ),
            ),
            parts.cards([parts.card(one.title, one.answer, one.bars) for one in report.questions]),
            parts.checks(report.checks),
            parts.charts("Over the run", _over_time(report)),
            parts.charts("Distributions", [_distribution(report, *time) for time in TIMES[:3]]),
            parts.table(
                "Times of answered requests, from when they were due",
                report.times.columns,
                report.times.lines,
            ),
            parts.facts(report.facts),
        ),
    )


def _over_time(report: LoadReport) -> list[str]:
    kinds = report.kinds()
    rows = report.result.requests
    end = max((row.due_s for row in rows), default=0.0)
    present = [kind for kind in KINDS if kind in kinds.values()]
    key = parts.key(*((kind, _MEANING[kind]) for kind in present))
    arrivals = piles([(row.due_s, kinds[row.position]) for row in rows], KINDS, end=end)
    marks = timeline(
        [
            svg.Point(x=row.due_s, y=row.ttft_ms, kind=kinds[row.position], title=_title(row))
            for row in rows
            if row.ttft_ms is not None
        ],
        end=end,
        y_label="time to first token, ms",
        limit=report.result.objective.ttft_ms,
    )
    return [arrivals and arrivals + key, marks and marks + key]


def _distribution(report: LoadReport, name: str, label: str) -> str:
    values = [
        value
        for row in report.counted
        if row.error is None and (value := getattr(row, name)) is not None
    ]
    limit = getattr(report.result.objective, name)
    series = [svg.DistributionSeries(name=label, kind=_COLOURS[name], values=values)]
    chart = svg.distributions(
        series, x_label=f"{label}, ms", limit=limit, limit_label=f"objective: {limit} ms"
    )
    if not chart or limit is None:
        return chart
    met = sum(value <= limit for value in values) / len(values)
    return chart + parts.key(("limit", f"objective, {limit:g} ms: met by {met:.1%} of answers"))


def _title(row: LoadRow) -> str:
    text = f"{row.item_id}, due at {row.due_s:.2f} s: first token after {row.ttft_ms:.1f} ms"
    return f"{text}; {row.error}" if row.error else text
