"""``sembench report``: render a result as a page, a table or a data file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sembench.load_results import LoadResult
from sembench.reports import LoadReport, Report, build_load_report, build_report, write_report
from sembench.reports.console import print_load_report, print_report
from sembench.results import Result, read_json


def report(
    result: Annotated[Path, typer.Option(help="Result file.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(help="File to write (.html, .json, .csv or .md); repeatable. None: print."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
) -> None:
    """Render a replay, offline or load result as HTML, Markdown, CSV, JSON or text."""
    built = _built(result, title)
    if not output:
        _print(built)
    for path in output or ():
        write_report(built, path)
        typer.echo(str(path))


def _print(built: Report | LoadReport) -> None:
    if isinstance(built, LoadReport):
        print_load_report(built)
    else:
        print_report(built)


def _built(path: Path, title: str | None) -> Report | LoadReport:
    """Build the report for whichever kind of result the file holds."""
    data = read_json(path)
    if isinstance(data, Mapping) and "load_version" in data:
        return build_load_report(LoadResult.from_dict(data, where=str(path)), title=title)
    return build_report(Result.from_dict(data, where=str(path)), title=title)
