"""Prints a report to the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sembench.reports.load_report import LoadReport
from sembench.reports.report import Check, Report
from sembench.reports.tables import transform_table

_STYLES = {True: "green", False: "bold red", None: "dim"}
_MARKS = {True: "holds", False: "FAILS", None: "not checked"}


def print_report(report: Report, console: Console | None = None) -> None:
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
    out.print(_checks(report.checks))


def print_load_report(report: LoadReport, console: Console | None = None) -> None:
    out = console or Console()
    out.print(f"[bold]{escape(report.title)}[/bold]")
    for question in report.questions:
        out.print(f"[bold]{escape(question.title)}[/bold] {escape(question.answer)}")
    times = Table(title="Times of answered requests, from when they were due")
    for position, column in enumerate(report.times.columns):
        times.add_column(column, justify="right" if position else "left", no_wrap=True)
    for line in report.times.lines:
        times.add_row(*map(escape, line))
    out.print(times)
    out.print(_checks(report.checks))


def _checks(checks: Iterable[Check]) -> Table:
    table = Table(title="Checks")
    for column in ("check", "value", "verdict"):
        table.add_column(column)
    for check in checks:
        style = _STYLES[check.good]
        table.add_row(
            escape(check.label), escape(check.value), f"[{style}]{_MARKS[check.good]}[/{style}]"
        )
    return table
