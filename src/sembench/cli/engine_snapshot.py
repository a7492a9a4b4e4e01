"""``sembench engine-snapshot`` and ``engine-window``: engine counters before and after a run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from sembench.results import read_result, write_result
from sembench.snapshots import engine_window as window_between
from sembench.snapshots import read_snapshot, with_window
from sembench.terminal.live_options import require_http, require_urls


def engine_snapshot(
    metrics_url: Annotated[list[str], typer.Option(help="Prometheus metrics URL; repeatable.")],
    output: Annotated[Path, typer.Option(help="Snapshot file to write.")],
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Per page.")] = 15.0,
) -> None:
    """Save the engines' current counters."""
    require_http()
    require_urls(metrics_url=metrics_url)

    from sembench.live.scrape import snapshot

    taken = asyncio.run(snapshot(metrics_url, timeout_seconds=timeout_seconds))
    _write(output, taken)
    counts = {url: len(samples) for url, samples in taken["endpoints"].items()}
    typer.echo(f"{output}: {counts}")


def engine_window(
    before: Annotated[Path, typer.Option(help="The earlier snapshot.")],
    after: Annotated[Path, typer.Option(help="The later snapshot.")],
    arm: Annotated[str, typer.Option(help="The arm that ran in between.")] = "single",
    output: Annotated[Path | None, typer.Option(help="File to write the difference to.")] = None,
    result: Annotated[
        Path | None, typer.Option(help="Result file whose engine section to update.")
    ] = None,
) -> None:
    """Subtract two snapshots to get what the engines counted in between."""
    section = window_between(read_snapshot(before), read_snapshot(after), arm=arm)
    if result is not None:
        write_result(result, with_window(read_result(result), section))
        typer.echo(f"{result}: engine section updated")
    if output is not None:
        _write(output, section)
        typer.echo(str(output))
    if result is None and output is None:
        typer.echo(json.dumps(section["prometheus"]["semantics"], indent=2))


def _write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
