"""Figures as tables: Markdown for the docs, HTML for reports."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from semblend.planning.policies.base import known_policies
from semblend.quality.figures import Figures

HEADINGS = (
    "policy",
    "items",
    "right",
    "95 %",
    "cold",
    "same answer",
    "to donor's",
    "KL",
    "top-1",
    "recomputed",
    "declined",
    "probe",
)

SHORT = 44
"""Width of a figure with its interval, in characters."""


def cells_of(row: Figures) -> tuple[str, ...]:
    """One table row."""
    low, high = row.right_interval
    return (
        row.policy,
        str(row.items),
        f"{row.right:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{row.cold_right:.1%}",
        f"{row.same:.1%}",
        str(row.towards_donor),
        f"{row.kl:.1e}",
        f"{row.top1:.1%}",
        f"{row.recompute:.1%}",
        f"{row.declined:.1%}",
        f"{row.probe:.1%}",
    )


def markdown(rows: Sequence[Figures]) -> str:
    """A Markdown table of one workload's rows."""
    return markdown_table(
        HEADINGS, [(f"`{name}`", *rest) for name, *rest in (cells_of(row) for row in rows)]
    )


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. The first column is text, the others are figures."""
    lines = [_line(headings), _line(["---", *["---:"] * (len(headings) - 1)])]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def html(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table. The first column is text, the others are figures."""
    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    body = "\n".join("<tr>" + "".join(_html_cell(text) for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def policies_markdown() -> str:
    """What every registered policy does, taken from its docstring."""
    lines = ["| policy | recomputes |", "| --- | --- |"]
    for name, cls in known_policies().items():
        first = (cls.__doc__ or "").strip().split("\n\n")[0]
        lines.append(f"| `{name}` | {' '.join(first.split())} |")
    return "\n".join(lines)


def _html_cell(text: str) -> str:
    """Keep figures on one line; only longer text may wrap."""
    kind = ' class="short"' if len(text) <= SHORT else ""
    return f"<td{kind}>{escape(text)}</td>"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
