"""The certificate's report: one HTML file with every figure and the trade-off charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from semblend.quality import charts, tables
from semblend.quality.bound import Bound, Verdict
from semblend.quality.curves import Curve
from semblend.quality.figures import Figures
from semblend.quality.svg import draw

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1d2126; background: #fbfbfa; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; width: 100%; background: #fff; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #e6e6e3; text-align: right; }
th:first-child, td:first-child { text-align: left; }
code { background: #f0f0ec; padding: .1rem .3rem; border-radius: 3px; }
.yes { color: #1f7a4d; } .no { color: #b3362f; } .scroll { overflow-x: auto; }
svg { max-width: 46rem; height: auto; display: block; margin: 1rem 0; border: 1px solid #e6e6e3; }
"""


def report(
    *,
    model: str,
    bound: Bound,
    verdicts: Sequence[Verdict],
    chosen: Verdict | None,
    figures: Sequence[Figures],
    curves: Sequence[Curve],
    noise: Mapping[str, float],
    facts: Mapping[str, Any],
) -> str:
    """The page. `facts` are shown as they are: fingerprints, versions, counts."""
    verdict = (
        f'<p class="yes">Certified: <code>{escape(chosen.policy)}</code></p>'
        if chosen is not None
        else '<p class="no">Not certified: no policy keeps the bound. Reuse stays off.</p>'
    )
    parts = [
        f"<h1>Quality of reuse: {escape(model)}</h1>",
        verdict,
        "<p>Every item is answered cold and warm by the same engine; a warm figure stands beside "
        "cold's own. A reader should distrust cells whose interval is wide, and text unlike "
        "what was measured.</p>",
        tables.html(("fact", "value"), [(k, str(v)) for k, v in facts.items()]),
        "<h2>The bound</h2>",
        tables.html(("limit", "value"), [(k, str(v)) for k, v in bound.to_dict().items()]),
        f"<p>Noise floor, cold against itself over {noise['items']:.0f} items: mean KL "
        f"{noise['kl_mean']:.2g}, 99th percentile {noise['kl_p99']:.2g}, same answer "
        f"{noise['same']:.1%}.</p>",
        "<h2>Policies, cheapest first</h2>",
        _verdicts(verdicts),
        "<h2>Trade-offs</h2>",
    ]
    wide = _widest(figures)
    for workload in wide:
        parts.append(draw(charts.trade_off(figures, workload, "right")))
        parts.append(draw(charts.trade_off(figures, workload, "kl")))
    if curves:
        parts.append("<h2>Where reused K/V deviates</h2>")
        for policy in dict.fromkeys(curve.policy for curve in curves):
            parts.append(draw(charts.by_layer(curves, policy)))
            parts.append(draw(charts.by_position(curves, policy)))
    parts.append("<h2>Every cell</h2>")
    for workload in dict.fromkeys(row.workload for row in figures):
        rows = [row for row in figures if row.workload == workload]
        parts.append(f"<h3>{escape(workload)}</h3><div class='scroll'>")
        parts.append(tables.html(tables.HEADINGS, [tables.cells_of(row) for row in rows]))
        parts.append("</div>")
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Quality of reuse: {escape(model)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (
            verdict.policy,
            f"{verdict.recompute:.1%}",
            f"{verdict.price:.1%}",
            "keeps the bound" if not verdict.objections else "; ".join(verdict.objections),
        )
        for verdict in verdicts
    ]
    headings = ("policy", "recomputed", "with probe and declined", "verdict")
    return f"<div class='scroll'>{tables.html(headings, rows)}</div>"


def _widest(figures: Sequence[Figures]) -> list[str]:
    """Workloads on which the most policies were tried."""
    counts: dict[str, int] = {}
    for row in figures:
        counts[row.workload] = counts.get(row.workload, 0) + 1
    most = max(counts.values(), default=0)
    return [workload for workload, count in counts.items() if count == most]
