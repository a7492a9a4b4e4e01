"""Tables for the command line. Names are never cut, however narrow the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 160
"""Columns for logs and pipes, which have no width of their own."""


def table(*headings: str, title: str | None = None, lines: bool = False, names: int = 1) -> Table:
    """Make a table whose first `names` columns stay on one line; the others wrap."""
    made = Table(title=title, show_lines=lines)
    for number, heading in enumerate(headings):
        made.add_column(heading, overflow="fold", no_wrap=number < names)
    return made


def output() -> Console:
    """Standard output, wide enough for names if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(_FILE_WIDTH, console.width))
