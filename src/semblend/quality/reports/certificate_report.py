"""The certificate's report: one HTML file with every figure and the trade-off charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from semblend.quality.bound import Bound, JudgedPolicy
from semblend.quality.curves import Curve
from semblend.quality.figures import Figures
from semblend.quality.issuing import CertificatePart, Issue
from semblend.quality.redteam.summaries import NOT_COVERED
from semblend.quality.reports import charts, figure_tables
from semblend.quality.reports.sections import Section, sections
from semblend.quality.reports.svg import draw

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1d2126; background: #fbfbfa; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; width: 100%; background: #fff; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #e6e6e3; text-align: right; }
th:first-child, td:first-child { text-align: left; } .short { white-space: nowrap; }
code { background: #f0f0ec; padding: .1rem .3rem; border-radius: 3px; }
.yes { color: #1f7a4d; } .no { color: #b3362f; } .scroll { overflow-x: auto; }
svg { max-width: 46rem; height: auto; display: block; margin: 1rem 0; border: 1px solid #e6e6e3; }
"""


def report(
    *,
    model: str,
    bound: Bound,
    found: Issue,
    curves: Sequence[Curve],
    facts: Mapping[str, Any],
) -> str:
    """The page. `facts` are shown as given: fingerprints, versions, counts."""
    judged = (
        f'<p class="yes">Certified: <code>{escape(found.certificate.policy)}</code></p>'
        if found.certificate is not None
        else f'<p class="no">Not certified: {escape(found.refusal)}. Reuse stays off.</p>'
    )
    noise = found.choice.noise
    parts = [
        f"<h1>Quality of reuse: {escape(model)}</h1>",
        judged,
        "<p>Every item is answered cold and warm by the same engine; a warm figure stands beside "
        "cold's own. A policy is chosen on the documents of one seed and confirmed on those of "
        "another. A reader should distrust cells whose interval is wide, and text unlike what was "
        f"measured. {NOT_COVERED}</p>",
        _table(("fact", "value"), [(k, str(v)) for k, v in facts.items()]),
        "<h2>The bound</h2>",
        _table(("limit", "value"), [(k, str(v)) for k, v in bound.to_dict().items()]),
        f"<p>Noise floor, cold against itself over {noise['items']:.0f} items: mean KL "
        f"{noise['kl_mean']:.2g}, 99th percentile {noise['kl_p99']:.2g}, same answer "
        f"{noise['same']:.1%}.</p>",
        *_judged_table("Chosen by, cheapest first", found.choice),
        *_judged_table("Confirmed by, cheapest first", found.confirmation),
        *(_section(section) for section in sections(found)),
        "<h2>Trade-offs</h2>",
    ]
    widest = (found.confirmation or found.choice).figures
    for workload in _widest(widest):
        parts.append(draw(charts.trade_off(widest, workload, "right")))
        parts.append(draw(charts.trade_off(widest, workload, "kl")))
    if curves:
        parts.append("<h2>Where reused K/V deviates</h2>")
        for policy in dict.fromkeys(curve.policy for curve in curves):
            parts.append(draw(charts.by_layer(curves, policy)))
            parts.append(draw(charts.by_position(curves, policy)))
    parts += _every_cell("Every cell, documents to confirm by", found.confirmation)
    parts += _every_cell("Every cell, documents to choose by", found.choice)
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Quality of reuse: {escape(model)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    table = _table(section.table.headings, section.table.rows)
    return f"<h2>{escape(section.title)}</h2>{text}{table}"


def _judged_table(title: str, part: CertificatePart | None) -> list[str]:
    if part is None:
        return []
    headings = ("policy", "recomputed", "with probe and declined", "verdict")
    return [f"<h2>{title}</h2>", _table(headings, [_judged_row(v) for v in part.judged_policies])]


def _judged_row(judged: JudgedPolicy) -> tuple[str, ...]:
    return (
        judged.policy,
        f"{judged.recompute:.1%}",
        f"{judged.price:.1%}",
        "keeps the bound" if not judged.objections else "; ".join(judged.objections),
    )


def _every_cell(title: str, part: CertificatePart | None) -> list[str]:
    if part is None:
        return []
    found = [f"<h2>{title}</h2>"]
    for workload in dict.fromkeys(row.workload for row in part.figures):
        rows = [row for row in part.figures if row.workload == workload]
        found.append(f"<h3>{escape(workload)}</h3>")
        found.append(_table(figure_tables.HEADINGS, [figure_tables.cells_of(row) for row in rows]))
    return found


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<div class='scroll'>{figure_tables.html(headings, rows)}</div>"


def _widest(figures: Sequence[Figures]) -> list[str]:
    """Workloads with the most policies tried."""
    counts: dict[str, int] = {}
    for row in figures:
        counts[row.workload] = counts.get(row.workload, 0) + 1
    most = max(counts.values(), default=0)
    return [workload for workload, count in counts.items() if count == most]
