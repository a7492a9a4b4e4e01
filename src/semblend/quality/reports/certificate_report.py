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
:root { color-scheme: light dark; --ink: #1d2126; --paper: #fbfbfa; --sheet: #fff; --line: #e6e6e3;
  --code: #f0f0ec; --yes: #1f7a4d; --no: #b3362f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e5e8; --paper: #15181b; --sheet: #1c2024;
  --line: #32373c; --code: #2a2f34; --yes: #5cc492; --no: #f0857d; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; width: 100%; background: var(--sheet); }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th:first-child, td:first-child, td:not(.short), tr > :nth-child(2):last-child { text-align: left; }
td:not(.short) { min-width: 14rem; overflow-wrap: anywhere; } .short { white-space: nowrap; }
tr > :nth-child(2):last-child { white-space: normal; overflow-wrap: anywhere; min-width: 0; }
code { background: var(--code); padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere; }
.yes { color: var(--yes); } .no { color: var(--no); } .scroll { overflow-x: auto; }
svg { max-width: min(46rem, 100%); height: auto; display: block; margin: 1rem 0;
  border: 1px solid var(--line); }
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
        "<p>The same engine answers each item twice: cold, and with reuse. The policy was chosen "
        "on the documents of one seed and confirmed on those of another. Distrust cells with a "
        f"wide interval. {NOT_COVERED}</p>",
        _table(("fact", "value"), [(k, str(v)) for k, v in facts.items()]),
        "<h2>The bound</h2>",
        _table(("limit", "value"), [(k, str(v)) for k, v in bound.to_dict().items()]),
        f"<p>Noise floor, cold against itself over {noise['items']:.0f} items: mean KL "
        f"{noise['kl_mean']:.2g}, 99th percentile {noise['kl_p99']:.2g}, same answer "
        f"{noise['same']:.1%}.</p>",
        *_judged_table("Policies on selection documents, cheapest first", found.choice),
        *_judged_table("Policies on confirmation documents, cheapest first", found.confirmation),
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
    parts += _every_cell("Every cell, confirmation documents", found.confirmation)
    parts += _every_cell("Every cell, selection documents", found.choice)
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
