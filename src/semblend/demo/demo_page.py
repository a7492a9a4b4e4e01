"""The demo's report: one self-contained HTML file that loads nothing."""

from __future__ import annotations

import html
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semblend import __version__
from semblend.core.outcomes import Outcome
from semblend.engine.api import RequestReport, StripSegment, TokenSource

if TYPE_CHECKING:
    from semblend.demo.comparison import Comparison

# Okabe and Ito's palette, which works for every kind of colour vision.
COLOURS = {
    TokenSource.EXACT: "#0072b2",
    TokenSource.CONTINUED: "#56b4e9",
    TokenSource.REUSED: "#009e73",
    TokenSource.RECOMPUTED: "#e69f00",
    TokenSource.COMPUTED: "#999999",
}
MEANINGS = {
    TokenSource.EXACT: "exact prefix",
    TokenSource.CONTINUED: "continued from the same conversation",
    TokenSource.REUSED: "reused from a donor",
    TokenSource.RECOMPUTED: "reusable, computed for quality",
    TokenSource.COMPUTED: "computed",
}
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --line: #d8d8dc; --soft: #6b6b70;
  --rail: #efeff2; --good: #00805d; --warn: #b34f00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --paper: #16161a; --line: #3a3a40; --soft: #a0a0a8;
    --rail: #26262c; --good: #3fc79a; --warn: #ff9d57; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } .soft { color: var(--soft); }
article { border-top: 1px solid var(--line); padding: 1rem 0; }
article h2 { font-size: 1.1rem; margin: 0; display: flex; flex-wrap: wrap; gap: 0 1rem;
  justify-content: space-between; }
svg { width: 100%; height: 26px; display: block; margin: .5rem 0; border-radius: 4px; }
.times { display: grid; grid-template-columns: auto 1fr auto; gap: .15rem .8rem;
  align-items: center; font-variant-numeric: tabular-nums; margin: .5rem 0; }
.times div { background: var(--rail); border-radius: 3px; }
.times i { display: block; height: 14px; border-radius: 3px; min-width: 2px; }
.legend span { display: inline-block; margin-right: 1.2rem; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px;
  margin-right: .4em; vertical-align: -.1em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; margin: .5rem 0 0;
  font-variant-numeric: tabular-nums; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .3rem; } }
.same { color: var(--good); } .other { color: var(--warn); font-weight: 600; }
"""


def write_report(
    path: Path, comparisons: Sequence[Comparison], *, model: str, standing: str
) -> None:
    """Write the page and create missing folders.

    Parameters
    ----------
    model, standing
        The model's name, and whether reuse was covered by its certificate, in words.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(comparisons, model, standing), encoding="utf-8")


def _page(comparisons: Sequence[Comparison], model: str, standing: str) -> str:
    legend = "".join(
        f'<span><i style="background:{COLOURS[source]}"></i>{meaning}</span>'
        for source, meaning in MEANINGS.items()
    )
    slowest = max(
        (max(item.cold.report.ttft_ms, item.warm.report.ttft_ms) for item in comparisons),
        default=1.0,
    )
    articles = "\n".join(_article(item, slowest) for item in comparisons)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>SemBlend demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>SemBlend demo</h1>
<p>Model <b>{html.escape(model)}</b>. Reuse: {html.escape(standing)}.</p>
<p class="soft">semblend {html.escape(__version__)}, Python {platform.python_version()},
{html.escape(platform.machine())}. Each time is the fastest run on this machine; compare the
ratios, not the milliseconds.</p>
<p class="legend">{legend}</p>
{articles}
</body></html>
"""


def _article(item: Comparison, slowest: float) -> str:
    warm = item.warm.report
    agreement = "same" if item.agreement == "same" else "other"
    reason = f", {warm.reason.value}: {warm.detail}" if warm.reason else ""
    return f"""<article><h2><span>{html.escape(item.scenario.name)}</span>
<span>{html.escape(headline(item))}</span></h2>
<div class="soft">{html.escape(item.scenario.what)}</div>
{strip(warm)}
<div class="times" role="group" aria-label="time to first token">
{_time("cold", item.cold.report.ttft_ms, slowest, TokenSource.COMPUTED)}
{_time("warm", warm.ttft_ms, slowest, TokenSource.REUSED)}</div>
<dl><dt>question</dt><dd>{html.escape(item.scenario.prompt.fact.question)}</dd>
<dt>cold answer</dt><dd>{html.escape(item.cold.text)}</dd>
<dt>warm answer</dt><dd class="{agreement}">{html.escape(item.warm.text)}
({html.escape(item.agreement)})</dd>
<dt>tokens</dt><dd>{warm.prompt_tokens} in the prompt: {warm.reused_tokens} reused,
{warm.computed_tokens} computed, {warm.recomputed_tokens} of them for quality</dd>
<dt>outcome</dt><dd>{html.escape(warm.outcome.value + reason)};
policy {html.escape(warm.policy)}</dd></dl></article>"""


def headline(item: Comparison) -> str:
    """Say how much faster it was. Controls and the naive experiment have no such result."""
    if item.scenario.policy is not None:
        return "experiment without a certificate"
    if item.warm.report.outcome is not Outcome.MATERIALISED:
        return "nothing reused"
    return f"{item.ratio:.1f}x faster"


def _time(name: str, milliseconds: float, slowest: float, source: TokenSource) -> str:
    share = 100.0 * milliseconds / slowest
    return (
        f'<span class="soft">{name}</span><div><i style="width:{share:.1f}%;'
        f'background:{COLOURS[source]}"></i></div><span>{milliseconds:,.0f} ms</span>'
    )


def strip(report: RequestReport) -> str:
    """Draw a prompt as a strip of its tokens' sources."""
    total = max(1, report.prompt_tokens)
    bars = "".join(_bar(segment, total) for segment in report.strip)
    label = f"{report.reused_tokens} of {report.prompt_tokens} tokens reused"
    return (
        f'<svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{bars}</svg>'
    )


def _bar(segment: StripSegment, total: int) -> str:
    left = 1000 * segment.start / total
    width = max(0.5, 1000 * (segment.end - segment.start) / total)
    title = f"tokens {segment.start} to {segment.end}: {MEANINGS[segment.source]}"
    if segment.donor_id:
        title += f" {segment.donor_id}"
    return (
        f'<rect x="{left:.2f}" width="{width:.2f}" height="26" '
        f'fill="{COLOURS[segment.source]}"><title>{html.escape(title)}</title></rect>'
    )
