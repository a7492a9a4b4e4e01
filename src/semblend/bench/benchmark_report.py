"""The format every benchmark prints: rows of case, metric, value, unit, target, ok."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One measured figure and its target."""

    case: str
    metric: str
    value: float
    unit: str
    target: float | None = None
    ok: bool | None = None
    """None if there is no target."""


@dataclass(slots=True)
class BenchmarkReport:
    """Collects rows and prints them as a table or as JSON."""

    benchmark: str
    command: str = field(default_factory=lambda: shlex.join(["semblend", *sys.argv[1:]]))
    rows: list[BenchmarkRow] = field(default_factory=list)

    def add(
        self,
        case: str,
        metric: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> BenchmarkRow:
        """Add a figure. The given bound is its target."""
        target = at_least if at_least is not None else at_most
        ok: bool | None = None
        if at_least is not None:
            ok = value >= at_least
        elif at_most is not None:
            ok = value <= at_most
        row = BenchmarkRow(case=case, metric=metric, value=value, unit=unit, target=target, ok=ok)
        self.rows.append(row)
        return row

    @property
    def failed(self) -> list[BenchmarkRow]:
        """Rows that miss their target."""
        return [row for row in self.rows if row.ok is False]

    def to_json(self) -> str:
        """This report as one JSON object."""
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "command": self.command,
                "rows": [asdict(row) for row in self.rows],
            }
        )

    def show(self, *, as_json: bool, console: Console | None = None) -> None:
        """Print to standard output, as JSON or as a table."""
        console = console or Console()
        if as_json:
            console.print(self.to_json(), soft_wrap=True, highlight=False, markup=False)
        else:
            console.print(_table(self.benchmark, self.rows))


def _table(title: str, rows: Iterable[BenchmarkRow]) -> Table:
    table = Table(title=title)
    justify: Literal["right"] = "right"
    table.add_column("case")
    table.add_column("metric")
    table.add_column("value", justify=justify)
    table.add_column("unit")
    table.add_column("target", justify=justify)
    table.add_column("")
    for row in rows:
        mark = {True: "[green]ok[/]", False: "[bold red]missed[/]", None: ""}[row.ok]
        target = "" if row.target is None else f"{row.target:g}"
        table.add_row(row.case, row.metric, f"{row.value:.4g}", row.unit, target, mark)
    return table
