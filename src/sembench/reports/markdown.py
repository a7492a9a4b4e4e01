"""A report as Markdown, for pull requests and lab pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sembench.reports.report import Check, Report, percent
from sembench.reports.tables import transform_table

_MARKS = {True: "holds", False: "**fails**", None: "not checked"}


def render_markdown(report: Report) -> str:
    parts = [f"# {escape(report.title)}", ""]
    for question in report.questions:
        parts += [f"**{question.title}** {escape(question.answer)}", ""]
    parts += text_table(
        ("rate", "value"),
        ((bar.label, percent(bar.rate)) for question in report.questions for bar in question.bars),
    )
    parts += ["", "## By transform", ""]
    transforms = transform_table(report)
    parts += text_table(transforms.columns, transforms.lines)
    parts += ["", "## Checks", ""]
    parts += checks_table(report.checks)
    parts += ["", "## Where the figures come from", ""]
    parts += text_table(("", ""), report.facts)
    return "\n".join(parts) + "\n"


def checks_table(checks: Iterable[Check]) -> list[str]:
    """The checks that would invalidate the figures, and whether they pass."""
    return text_table(
        ("check", "value", "verdict"),
        ((check.label, check.value, _MARKS[check.good]) for check in checks),
        raw_last=True,
    )


def escape(text: str) -> str:
    """Escape text for Markdown and HTML."""
    for mark in "\\`*_{}[]<>#|!":
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def text_table(
    header: Sequence[str], lines: Iterable[Sequence[str]], *, raw_last: bool = False
) -> list[str]:
    """The lines of a Markdown table; every cell except a `raw_last` one is escaped."""
    rows = [_line(header), "|" + "---|" * len(header)]
    for line in lines:
        cells = [escape(cell) for cell in line]
        if raw_last:
            cells[-1] = line[-1]
        rows.append(_line(cells))
    return rows


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
