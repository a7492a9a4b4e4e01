"""A comparison as a console table and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

NOT_MEASURED = "not measured"


def interval_text(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return NOT_MEASURED
    return f"{figure['value']:.4g} [{figure['lo']:.4g}, {figure['hi']:.4g}]"


def difference_text(figure: Mapping[str, Any] | None) -> str:
    """The difference, as a factor or signed, with a star if its interval excludes no change."""
    if figure is None:
        return NOT_MEASURED
    star = " *" if figure["significant"] else ""
    if figure["kind"] == "ratio":
        return f"{figure['value']:.3g}x [{figure['lo']:.3g}, {figure['hi']:.3g}]{star}"
    return f"{figure['value']:+.4g} [{figure['lo']:+.4g}, {figure['hi']:+.4g}]{star}"


def _table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = [result["name"] for result in comparison["results"]]
    header = ["figure", *names, *(f"{name} against {names[0]}" for name in names[1:])]
    lines: list[list[str]] = []
    for figure, values in comparison["figures"].items():
        if all(value is None for value in values.values()):
            continue
        lines.append(
            [
                figure,
                *(interval_text(values[name]) for name in names),
                *(difference_text(comparison["differences"][name][figure]) for name in names[1:]),
            ]
        )
    return header, lines


def comparison_console(comparison: Mapping[str, Any]) -> None:
    header, lines = _table(comparison)
    table = Table(caption="95 % bootstrap intervals; * the interval excludes no change")
    for column in header:
        table.add_column(column)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def comparison_markdown(comparison: Mapping[str, Any]) -> str:
    header, lines = _table(comparison)
    rows = ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in [header, *lines]]
    rows.insert(1, "|" + "---|" * len(header))
    note = "\n\n95 % bootstrap intervals over items; \\* the interval excludes no change.\n"
    return "# Comparison\n\n" + "\n".join(rows) + note


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
