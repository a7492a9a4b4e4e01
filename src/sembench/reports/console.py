"""A report on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sembench.reports.report import Report
from sembench.reports.tables import transform_table

_STYLES = {True: "green", False: "bold red", None: "dim"}
_MARKS = {True: "holds", False: "FAILS", None: "not checked"}


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the report."""
    out = console or Console()
    out.print(f"[bold]{escape(report.title)}[/bold]")
    for question in report.questions:
        out.print(f"[bold]{escape(question.title)}[/bold] {escape(question.answer)}")
    table = Table(title="By transform")
    cells = transform_table(report)
    for position, column in enumerate(cells.columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    for line in cells.lines:
        table.add_row(*map(escape, line))
    out.print(table)
    checks = Table(title="Checks")
    for column in ("check", "value", "verdict"):
        checks.add_column(column)
    for check in report.checks:
        style = _STYLES[check.good]
        checks.add_row(
            escape(check.label), escape(check.value), f"[{style}]{_MARKS[check.good]}[/{style}]"
        )
    out.print(checks)
