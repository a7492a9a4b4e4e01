"""A report as one self-contained HTML page: no scripts, no requests, everything escaped."""

from __future__ import annotations

from html import escape

from sembench.comparing.paired import HIT_TOKENS, semantic_tokens, usable_pairs
from sembench.reports import page_parts as parts
from sembench.reports import svg
from sembench.reports.report import Report, number
from sembench.reports.tables import transform_table
from sembench.results import RequestRow

MAX_STRIPS = 300


def render_html(report: Report) -> str:
    transforms = transform_table(report)
    run = report.result.run
    return parts.page(
        report.title,
        (
            parts.head(
                report.title,
                (
                    f"run {run.run_id}",
                    f"{len(report.rows)} requests",
                    str(report.result.config.get("model") or "no model"),
                    report.result.created_at_utc,
                ),
            ),
            parts.cards([parts.card(one.title, one.answer, one.bars) for one in report.questions]),
            parts.checks(report.checks),
            _times(report),
            parts.table("By transform", transforms.columns, transforms.lines),
            _requests(report),
            _negatives(report),
            parts.facts(report.facts),
        ),
    )


def _times(report: Report) -> str:
    pairs = usable_pairs(report.rows)
    if not pairs:
        times = [row.ttft_ms for row in report.rows if row.ttft_ms is not None]
        if not times:
            return ""
        chart = svg.distributions(
            [svg.DistributionSeries(name="served", kind="warm", values=times)],
            x_label="time to first token, ms",
        )
        return parts.charts("Time", [chart])
    points = [
        svg.Point(
            x=row.cold_ttft_ms or 0.0, y=row.ttft_ms or 0.0, kind=_kind(row), title=_pair_title(row)
        )
        for row in pairs
    ]
    positive = [row for row in pairs if not row.negative_control]
    negative = [row for row in pairs if row.negative_control]
    series = [
        svg.DistributionSeries(
            name="cold", kind="cold", values=[row.cold_ttft_ms or 0.0 for row in positive]
        ),
        svg.DistributionSeries(
            name="warm", kind="warm", values=[row.ttft_ms or 0.0 for row in positive]
        ),
        svg.DistributionSeries(
            name="negative controls, warm",
            kind="negative",
            values=[row.ttft_ms or 0.0 for row in negative],
        ),
    ]
    plot = svg.scatter(
        points, x_label="cold time to first token, ms", y_label="warm time to first token, ms"
    )
    shapes = svg.distributions(series, x_label="time to first token, ms")
    marks = parts.key(
        ("hit", f"hit ({HIT_TOKENS} or more semantic tokens)"),
        ("miss", "miss"),
        ("negative", "negative control; both arms take the same time on the dashed line"),
    )
    lines = parts.key(
        *((one.kind, f"{one.name} ({len(one.values)})") for one in series if one.values)
    )
    return parts.charts("Time", [plot + marks, shapes + lines])


def _requests(report: Report) -> str:
    shown = report.rows[:MAX_STRIPS]
    if not shown:
        return ""
    live = any(row.ttft_ms is not None or row.error is not None for row in report.rows)
    lines = "".join(
        f'<tr><td>{escape(row.transform)}<div class="note">{escape(row.item_id)}</div></td>'
        f'<td class="num">{row.prompt_tokens}</td>'
        f'<td class="wide">{svg.strip(row.block_strip or "")}</td>'
        + (f'<td class="wide">{_confirmed(row)}</td><td class="answer">{_answer(row)}</td>' * live)
        + "</tr>"
        for row in shown
    )
    more = (
        f"; the first {MAX_STRIPS} of {len(report.rows)}" if len(report.rows) > MAX_STRIPS else ""
    )
    key = parts.key(
        ("exact", "exact"),
        ("both", "exact and planned"),
        ("semantic", "eligible, or reused semantically"),
        ("candidate", "candidate"),
        ("nothing", "computed"),
    )
    backend = "<th>backend, share of the prompt</th><th>answer</th>" * live
    return (
        f'<h2>Requests</h2><p class="note">One line per request, prompt from left to right{more}.'
        f'</p>{key}<div class="card scroll"><table class="requests"><tr><th>item</th>'
        f'<th class="num">tokens</th><th>manifest and planner, by block</th>{backend}</tr>'
        f"{lines}</table></div>"
    )


def _confirmed(row: RequestRow) -> str:
    length = row.engine_prompt_tokens or row.prompt_tokens
    if row.cached_tokens is None or not length:
        return '<span class="note">not measured</span>'
    semantic = semantic_tokens(row)
    exact = row.exact_confirmed_tokens
    if semantic is None or exact is None:
        return svg.shares(
            [("confirmed", row.cached_tokens / length, f"{row.cached_tokens} tokens confirmed")]
        )
    return svg.shares(
        [
            ("exact", exact / length, f"{exact} tokens exact"),
            ("semantic", semantic / length, f"{semantic} tokens semantic"),
        ]
    )


def _answer(row: RequestRow) -> str:
    if row.error is not None:
        return f'<span class="verdict bad">{escape(row.error[:120])}</span>'
    if row.donor_fact_leak:
        return '<span class="verdict bad">states the donor\'s fact</span>'
    if row.repeat_contaminated:
        return '<span class="verdict bad">repeat was contaminated</span>'
    if row.quality_pass is None:
        return '<span class="note">not judged</span>'
    return f'<span class="{"good" if row.quality_pass else "bad"}">{_quality(row)}</span>'


def _quality(row: RequestRow) -> str:
    word = "passes" if row.quality_pass else "fails"
    return word if row.quality_score is None else f"{word} ({row.quality_score:.2f})"


def _negatives(report: Report) -> str:
    if not report.negatives:
        return ""
    lines = "".join(
        "<tr>"
        + parts.cells(
            (
                row.item_id,
                number(row.cached_tokens),
                number(semantic_tokens(row)),
                number(row.cold_ttft_ms, ".1f"),
                number(row.ttft_ms, ".1f"),
                "not measured" if row.ttft_speedup is None else f"{row.ttft_speedup:.2f}x",
                row.route_outcome or "not measured",
            )
        )
        + "</tr>"
        for row in report.negatives[:MAX_STRIPS]
    )
    columns = (
        "item",
        "tokens confirmed",
        "of which semantic",
        "cold ms",
        "warm ms",
        "ratio",
        "route",
    )
    head = "".join(
        f'<th class="{"num" if position else ""}">{column}</th>'
        for position, column in enumerate(columns)
    )
    return (
        '<h2>Negative controls</h2><p class="note">They share nothing with their donors. Any '
        "semantic reuse here is a false claim, and they must be as slow as cold.</p>"
        f'<div class="card scroll"><table><tr>{head}</tr>{lines}</table></div>'
    )


def _kind(row: RequestRow) -> str:
    if row.negative_control:
        return "negative"
    return "hit" if (semantic_tokens(row) or 0) >= HIT_TOKENS else "miss"


def _pair_title(row: RequestRow) -> str:
    return (
        f"{row.transform} {row.item_id}: {row.cold_ttft_ms:.1f} ms cold, {row.ttft_ms:.1f} ms warm"
    )
