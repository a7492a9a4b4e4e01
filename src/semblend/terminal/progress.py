"""Progress of long work: one total and the time left, as a bar on a terminal, else as lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

EVERY_S = 15.0
"""Seconds between lines when there is no terminal."""
Tell = Callable[[int], None]
"""Called with the amount done so far."""
Advance = Callable[[int], None]
"""Called with the amount done since the last call."""


@contextmanager
def one_total(
    what: str,
    total: int,
    console: Console,
    *,
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Tell]:
    """Show progress through `total` units of work."""
    if not console.is_terminal:
        yield _lines(what, total, console, every_s, clock)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda done: bars.update(bar, completed=done)


@contextmanager
def advancing(what: str, total: int, console: Console) -> Iterator[Advance]:
    """Like `one_total`, for work that several functions share: each reports only its part."""
    done = 0
    with one_total(what, total, console) as tell:

        def advance(units: int) -> None:
            nonlocal done
            done += units
            tell(done)

        tell(0)
        yield advance


def unseen(units: int) -> None:
    """Report progress to nobody."""


def _lines(
    what: str, total: int, console: Console, every_s: float, clock: Callable[[], float]
) -> Tell:
    started = said = clock()
    first: int | None = None
    finished = False

    def tell(done: int) -> None:
        nonlocal said, first, finished
        now = clock()
        # Work from an earlier run took none of this run's time.
        first = done if first is None else first
        if finished or (done < total and now - said < every_s):
            return
        said, finished = now, done >= total
        line = f"{what}: {done:,} of {total:,} ({done / max(1, total):.0%})"
        if finished:
            line += f", took {remaining(now - started)}"
        elif done > first:
            left = (now - started) / (done - first) * (total - done)
            line += f", {remaining(left)} left"
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    return tell


def remaining(seconds: float) -> str:
    """Format seconds for people, rounded up.

    >>> remaining(0.2), remaining(75), remaining(7300)
    ('1 s', '2 min', '2.1 h')
    """
    if seconds < 60:
        return f"{max(1, ceil(seconds))} s"
    if seconds < 3600:
        return f"{ceil(seconds / 60)} min"
    return f"{ceil(seconds / 360) / 10:.1f} h"
