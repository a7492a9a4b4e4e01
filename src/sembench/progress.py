"""Progress on stderr: a bar on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


def progress_bar() -> Progress:
    """A bar with count, elapsed and remaining time; silent if stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def track(values: Iterable[T], *, description: str, total: int | None = None) -> Iterator[T]:
    """Yield `values` while a bar shows the progress."""
    with progress_bar() as bar:
        task = bar.add_task(description, total=total)
        for value in values:
            yield value
            bar.advance(task)
