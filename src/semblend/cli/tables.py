"""Tables of the command line: names are never cut, whatever the width of the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 160
"""Columns where nobody looks at a terminal: logs and pipes have no width of their own."""


def table(*headings: str, title: str | None = None, lines: bool = False, names: int = 1) -> Table:
    """A table whose first `names` columns hold names: those stay on one line, others wrap."""
    made = Table(title=title, show_lines=lines)
    for number, heading in enumerate(headings):
        made.add_column(heading, overflow="fold", no_wrap=number < names)
    return made


def output() -> Console:
    """Standard output, wide enough for names where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(_FILE_WIDTH, console.width))
