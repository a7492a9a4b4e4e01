"""``sembench report``: a result as a page, a table, a file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.reports import build_report, write_report
from sembench.reports.console import print_report
from sembench.results import read_result


def report(
    result: Annotated[Path, typer.Option(help="Result file.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(help="File to write, repeatable: .html, .json, .csv or .md. None: print."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
) -> None:
    """Render a result: one self-contained HTML page, Markdown, CSV, JSON, or the terminal."""
    built = build_report(read_result(result), title=title)
    if not output:
        print_report(built)
    for path in output or ():
        write_report(built, path)
        typer.echo(str(path))
