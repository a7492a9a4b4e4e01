"""The page of `semblend report`: one self-contained HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from semblend import __version__
from semblend.core.errors import SettingsError
from semblend.integration.auditing.savings import Savings, Share

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --line: #d8d8dc; --soft: #5d5d63;
  --exact: #0072b2; --reused: #009e73; --reusable: #7fcfb9; --computed: #b3bbc6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --paper: #16161a; --line: #3a3a40; --soft: #a0a0a8;
    --reusable: #2c6b5a; --computed: #566070; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.soft { color: var(--soft); } .big { font-size: 2rem; font-weight: 600; line-height: 1.2; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; }
.facts div { border-top: 3px solid var(--line); padding-top: .5rem; }
svg { width: 100%; height: 28px; display: block; margin: 1rem 0 .4rem; border-radius: 4px; }
.legend span { display: inline-block; margin-right: 1.2rem; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px;
  margin-right: .4em; vertical-align: -.1em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
"""


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(0.25), duration(90), duration(7200)
    ('0.25 s', '1.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def write_page(path: Path, found: Savings, *, top: int) -> None:
    """Write the page and create missing folders.

    Raises
    ------
    SettingsError
        If the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(found, top=top), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error


def page(found: Savings, *, top: int) -> str:
    """The page's HTML."""
    total = found.total
    documents = _table(
        ("document (donor)", "its tokens", "requests", "tokens reused or reusable"),
        (
            (
                each.donor_id,
                "" if each.donor_tokens is None else f"{each.donor_tokens:,}",
                f"{each.requests:,}",
                f"{each.tokens:,}",
            )
            for each in found.documents[:top]
        ),
    )
    tenants = _table(
        ("tenant", "requests", "prompt tokens", "reused", "reusable", "would save"),
        (
            (
                name,
                f"{share.requests:,}",
                f"{share.prompt_tokens:,}",
                f"{share.reused_share:.1%}",
                f"{share.reusable_share:.1%}",
                duration(share.savable_seconds),
            )
            for name, share in list(found.tenants.items())[:top]
        ),
    )
    reasons = _table(
        ("computed because", "requests"),
        ((name.replace("_", " "), f"{n:,}") for name, n in found.reasons.items()),
    )
    unknown = (
        ""
        if found.timed
        else '<p class="soft">Some engines did not report prefill times, so their seconds '
        "are missing. Give them with <code>--prefill-us-per-token</code>.</p>"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What reuse saves</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body><h1>What reuse saves</h1>
<p class="soft">{total.requests:,} requests with {total.prompt_tokens:,} prompt tokens,
{_day(found.first)} to {_day(found.last)} UTC. semblend {escape(__version__)}.</p>
<div class="facts">
<div><div class="big">{total.reusable_share:.1%}</div>of prompt tokens could be reused but were
computed</div>
<div><div class="big">{duration(total.savable_seconds)}</div>of prefill that would save:
{found.gpu_hours:.2f} GPU-hours</div>
<div><div class="big">{total.reused_share:.1%}</div>of prompt tokens were reused, which saved
{duration(total.saved_seconds)}</div>
</div>
{_bar(total)}{unknown}
<h2>Documents reused most</h2>{documents}
<h2>By tenant</h2>{tenants}
<h2>Why requests were computed</h2>{reasons}
<p class="soft">Seconds are the cost model's savings at the speed of the engine's own prefills.
Reusable tokens were found in donors, were worth reusing, and were computed for
lack of a certificate or because the mode loads nothing.</p>
</body></html>
"""


def _bar(total: Share) -> str:
    """Draw prompt tokens by their source."""
    whole = max(1, total.prompt_tokens)
    parts = (
        ("exact", "exact prefix", total.exact_tokens),
        ("reused", "reused", total.reused_tokens),
        ("reusable", "reusable, but computed", total.reusable_tokens),
    )
    rest = max(0, whole - sum(tokens for _, _, tokens in parts))
    drawn, legend, at = [], [], 0.0
    for name, meaning, tokens in (*parts, ("computed", "computed", rest)):
        width = 100 * tokens / whole
        fill = f"var(--{name})"
        drawn.append(f'<rect x="{at:.3f}" width="{width:.3f}" height="1" style="fill:{fill}"/>')
        legend.append(f'<span><i style="background:{fill}"></i>{meaning} {width:.1f}&nbsp;%</span>')
        at += width
    return (
        '<svg viewBox="0 0 100 1" preserveAspectRatio="none" role="img" '
        f'aria-label="Prompt tokens by source">{"".join(drawn)}</svg>'
        f'<p class="legend">{"".join(legend)}</p>'
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return '<p class="soft">None.</p>'
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _day(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return "?"
