"""The demo as a page: one self-contained HTML file, nothing loaded from anywhere."""

from __future__ import annotations

import html
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semblend import __version__
from semblend.engine.api import RequestReport, StripSegment, TokenSource

if TYPE_CHECKING:
    from semblend.cli.demo import Comparison

# Okabe and Ito's palette: told apart by people with any colour vision.
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
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --line: #d8d8dc; --soft: #6b6b70; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --paper: #16161a; --line: #3a3a40; --soft: #a0a0a8; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } .soft { color: var(--soft); }
article { border-top: 1px solid var(--line); padding: 1rem 0; }
article h2 { font-size: 1.1rem; margin: 0; display: flex; justify-content: space-between; }
svg { width: 100%; height: 26px; display: block; margin: .5rem 0; border-radius: 4px; }
.legend span { display: inline-block; margin-right: 1.2rem; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px;
  margin-right: .4em; vertical-align: -.1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td { padding: .1rem 1.2rem .1rem 0; }
.same { color: #00805d; } .other { color: #c05600; font-weight: 600; }
"""


def write_report(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Write the page; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(comparisons), encoding="utf-8")


def _page(comparisons: Sequence[Comparison]) -> str:
    legend = "".join(
        f'<span><i style="background:{COLOURS[source]}"></i>{meaning}</span>'
        for source, meaning in MEANINGS.items()
    )
    articles = "\n".join(map(_article, comparisons))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>SemBlend demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>SemBlend demo</h1>
<p class="soft">semblend {html.escape(__version__)}, Python {platform.python_version()},
{html.escape(platform.machine())}. Times are this machine's own, the faster of the runs of each arm;
read the ratios.</p>
<p class="legend">{legend}</p>
{articles}
</body></html>
"""


def _article(item: Comparison) -> str:
    cold, warm = item.cold.report, item.warm.report
    verdict = "same" if item.verdict == "same" else "other"
    reason = f", {warm.reason.value}: {warm.detail}" if warm.reason else ""
    return f"""<article><h2><span>{html.escape(item.scenario.name)}</span>
<span>{item.ratio:.1f}x sooner</span></h2>
<div class="soft">{html.escape(item.scenario.what)}</div>
{strip(warm)}
<table>
<tr><td>time to first token</td><td>cold {cold.ttft_ms:.0f} ms</td>
<td>warm {warm.ttft_ms:.0f} ms</td></tr>
<tr><td>tokens</td><td>{warm.prompt_tokens} in the prompt</td><td>{warm.reused_tokens} reused,
{warm.computed_tokens} computed, of those {warm.recomputed_tokens} for quality</td></tr>
<tr><td>answer</td><td>cold: {html.escape(item.cold.text)}</td>
<td class="{verdict}">warm: {html.escape(item.warm.text)} ({html.escape(item.verdict)})</td></tr>
<tr><td>outcome</td><td colspan="2">{html.escape(warm.outcome.value + reason)};
policy {html.escape(warm.policy)}</td></tr>
</table></article>"""


def strip(report: RequestReport) -> str:
    """A prompt as a strip of its tokens' sources."""
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
