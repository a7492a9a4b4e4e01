"""Building blocks of every report page: frame, tables, checks, provenance. All escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sembench.reports import svg
from sembench.reports.page_style import STYLE
from sembench.reports.report import Bar, Check, percent

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_VERDICTS = {True: ("good", "holds"), False: ("bad", "fails"), None: ("unknown", "not checked")}


def page(title: str, sections: Sequence[str]) -> str:
    """One self-contained document: no scripts, no requests."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def head(title: str, said: Sequence[str]) -> str:
    """The title and one line about the run."""
    return (
        f"<h1>{escape(title)}</h1>"
        f'<p class="soft">{escape(" · ".join(part for part in said if part))}</p>'
    )


def card(title: str, answer: str, bars: Sequence[Bar] = ()) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p>{escape(answer)}</p>'
        f"{''.join(map(bar, bars))}</div>"
    )


def cards(drawn: Sequence[str]) -> str:
    return f'<div class="questions">{"".join(drawn)}</div>'


def bar(shown: Bar) -> str:
    pieces = [(shown.kind, shown.rate, shown.label)] if shown.rate is not None else []
    return (
        f'<div class="bar"><span>{escape(shown.label)}</span>'
        f"<b>{escape(percent(shown.rate))}</b>{svg.shares(pieces)}</div>"
    )


def charts(title: str, drawn: Sequence[str]) -> str:
    """Charts side by side; empty if there are none."""
    boxes = "".join(f'<div class="card">{one}</div>' for one in drawn if one)
    return f'<h2>{escape(title)}</h2><div class="charts">{boxes}</div>' if boxes else ""


def key(*entries: tuple[str, str]) -> str:
    """The color legend, as (kind, text)."""
    keys = "".join(f'<span class="key {kind}"></span>{escape(text)}' for kind, text in entries)
    return f'<p class="note keys">{keys}</p>'


def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the row."""
    head_cells = "".join(
        f'<th class="{"num" if position else ""}">{escape(column)}</th>'
        for position, column in enumerate(columns)
    )
    body = "".join(f"<tr>{cells(line)}</tr>" for line in lines)
    return (
        f'<h2>{escape(title)}</h2><div class="card scroll">'
        f"<table><tr>{head_cells}</tr>{body}</table></div>"
    )


def cells(texts: Sequence[str]) -> str:
    return "".join(
        f'<td class="{"num" if position else ""}">{escape(text)}</td>'
        for position, text in enumerate(texts)
    )


def checks(shown: Sequence[Check]) -> str:
    """The checks that would invalidate the figures, and whether they pass."""
    lines = "".join(
        f"<tr><td>{escape(check.label)}"
        + (f'<div class="note">{escape(check.detail)}</div>' if check.detail else "")
        + f"</td><td>{escape(check.value)}</td>"
        f'<td class="verdict {_VERDICTS[check.good][0]}">{_VERDICTS[check.good][1]}</td></tr>'
        for check in shown
    )
    return f'<h2>Validity checks</h2><div class="card scroll"><table>{lines}</table></div>'


def facts(shown: Sequence[tuple[str, str]]) -> str:
    """Where the figures come from."""
    lines = "".join(
        f'<tr><th>{escape(name)}</th><td class="break">{escape(value)}</td></tr>'
        for name, value in shown
    )
    return (
        '<h2>Where the figures come from</h2><div class="card scroll">'
        f'<table class="facts">{lines}</table></div>'
    )
