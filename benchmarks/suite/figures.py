"""Figures with everything they depend on: the format every benchmark of the suite prints."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `value` is None if it could not be measured; `ok` is None without a target."""

    case: str
    metric: str
    value: float | None
    unit: str
    target: float | None
    ok: bool | None
    context_tokens: float | None
    """Median prompt length as the backend counts it."""
    samples: int
    backend_confirmed: bool | None
    """Whether the backend confirmed reuse in this case; None if it does not report reuse."""
    interval: tuple[float, float] | None = None


@dataclass(slots=True)
class Figures:
    """Collects rows with their shared context, and prints them."""

    benchmark: str
    context: Mapping[str, Any]
    """Model, backend, cache configuration, hardware, data."""
    command: str = field(
        default_factory=lambda: shlex.join(
            ["python", "-m", f"benchmarks.suite.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
        )
    )
    rows: list[Row] = field(default_factory=list)
    divider: str | None = None
    """Where cases are "what: case" with this between them, each case is a table of its own."""

    def add(
        self,
        case: str,
        metric: str,
        value: float | None,
        unit: str,
        *,
        context_tokens: float | None,
        samples: int,
        backend_confirmed: bool | None,
        interval: tuple[float, float] | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Add a figure; the given bound is its target, and a missing figure misses it."""
        target = at_least if at_least is not None else at_most
        ok: bool | None = None
        if target is not None:
            ok = value is not None and (
                value >= target if at_least is not None else value <= target
            )
        self.rows.append(
            Row(
                case=case,
                metric=metric,
                value=value,
                unit=unit,
                target=target,
                ok=ok,
                context_tokens=context_tokens,
                samples=samples,
                backend_confirmed=backend_confirmed,
                interval=interval,
            )
        )

    @property
    def failed(self) -> bool:
        """Whether a target is missed."""
        return any(row.ok is False for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "command": self.command,
            "context": dict(self.context),
            "rows": [asdict(row) for row in self.rows],
        }

    def _tables(self) -> dict[str, list[Row]]:
        if self.divider is None:
            return {self.benchmark: self.rows}
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            what, _, case = row.case.partition(self.divider)
            found.setdefault(f"{self.benchmark}: {case}", []).append(replace(row, case=what))
        return found

    def show(self, *, as_json: bool, output: Path | None) -> int:
        """Print (and write) the figures; exit code 1 if a target is missed."""
        text = json.dumps(self.to_dict(), indent=None if as_json else 2)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text + "\n", encoding="utf-8")
        if as_json:
            print(text)
        else:
            console = Console()
            for title, rows in self._tables().items():
                console.print(_table(title, rows))
            for name, value in self.context.items():
                console.print(f"[dim]{name}[/dim] {value}", highlight=False)
        return int(self.failed)


def _table(title: str, rows: Sequence[Row]) -> Table:
    """Cases against metrics, the longer list downwards, so that the table fits a terminal."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    cases = list(dict.fromkeys(row.case for row in rows))
    cells = {(row.case, row.metric): _cell(row) for row in rows}
    for case in cases:
        own = [row for row in rows if row.case == case]
        lengths = [row.context_tokens for row in own if row.context_tokens is not None]
        said = [row.backend_confirmed for row in own if row.backend_confirmed is not None]
        cells[case, "context"] = f"{lengths[0]:.0f} tokens" if lengths else ""
        cells[case, "reuse"] = ("confirmed" if any(said) else "none") if said else "not stated"
    metrics = ["context", *metrics, "reuse"]
    downwards = len(metrics) >= len(cases)
    across = cases if downwards else metrics
    table = Table(title=title)
    table.add_column("" if downwards else "case")
    for name in across:
        table.add_column(name, justify="right")
    for name in metrics if downwards else cases:
        keys = ((other, name) if downwards else (name, other) for other in across)
        table.add_row(name, *(cells.get(key, "") for key in keys))
    return table


def _cell(row: Row) -> str:
    if row.value is None:
        return "not measured"
    number = f"{row.value:,.0f}" if abs(row.value) >= 1000 else f"{row.value:.4g}"
    text = f"{number} {row.unit}".strip()
    return f"[bold red]{text}[/] (target {row.target:g})" if row.ok is False else text
