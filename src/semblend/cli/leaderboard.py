"""`semblend leaderboard`: compare every policy over its grid, on moved and edited text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from semblend.terminal.progress import one_total

if TYPE_CHECKING:
    from semblend.quality.figures import Figures
    from semblend.quality.measure import Record
    from semblend.quality.suite import Cell

QUICK_ITEMS = 3
QUICK_LENGTHS = (400,)


def leaderboard(
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    items: Annotated[int, typer.Option(min=1, help="Items per workload.")] = 200,
    quick: Annotated[
        bool, typer.Option(help="A few short items: two minutes on two cores, wide intervals.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the documents.")] = 1,
    output: Annotated[
        Path, typer.Option(help="Folder for figures and plots; the page is OUTPUT.md.")
    ] = Path("results/leaderboard"),
    records: Annotated[
        Path | None,
        typer.Option(help="Use one seed's records from `certify` instead of measuring."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    processes: Annotated[int, typer.Option(min=1, help="Measuring processes.")] = 1,
) -> None:
    """Compare recompute policies by quality and cost, as JSON, Markdown and plots."""
    console = Console()
    from semblend.quality.certifying import leaderboard_cells
    from semblend.quality.figures import figures_of

    if records is None:
        records = output / ("quick" if quick else f"seed-{seed}")
        cells = (
            leaderboard_cells(QUICK_ITEMS, lengths=QUICK_LENGTHS)
            if quick
            else leaderboard_cells(items)
        )
        _measure(console, model, cells, seed, records, device, dtype, processes)
    found = _records(records)
    figures = figures_of(found)
    write(found, figures, output, model=Path(model).name)
    for row in figures:
        if row.policy not in ("cold", "all"):
            console.print(
                f"{row.workload:18} {row.policy:60} right {row.right:6.1%} same {row.same:6.1%} "
                f"KL {row.kl:8.1e} recomputed {row.recompute:6.1%}",
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"written: [bold]{output}.md[/]")


def write(
    records: Sequence[Record], figures: Sequence[Figures], output: Path, *, model: str
) -> None:
    """Write the page, and a folder with its plots and all figures as JSON."""
    from semblend.quality.certifying import grid
    from semblend.quality.monotone import steps
    from semblend.quality.reports import charts, figure_tables
    from semblend.quality.reports.sections import monotone_section
    from semblend.quality.reports.svg import draw

    output.mkdir(parents=True, exist_ok=True)
    rows = [row.to_dict() for row in figures]
    (output / "figures.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    parts = [HEAD.format(model=model)]
    for workload in dict.fromkeys(row.workload for row in figures):
        mine = [row for row in figures if row.workload == workload]
        mine.sort(key=lambda row: (-row.right, row.price))
        parts.append(f"## {workload}\n")
        for measure, name in (("right", "right answers"), ("kl", "KL")):
            path = output / f"{workload}-{measure}.svg"
            path.write_text(draw(charts.trade_off(figures, workload, measure)), encoding="utf-8")
            alt = f"{workload}: {name} against recomputed share"
            parts.append(f"![{alt}]({output.name}/{path.name})\n")
        parts.append(figure_tables.markdown(mine) + "\n")
    measured = {row.policy for row in figures}
    if missing := [spec for spec in grid() if spec not in measured]:
        listed = ", ".join(f"`{spec}`" for spec in missing)
        parts.append(f"## Not measured\n\nThese records hold nothing of {listed}.\n")
    checked = monotone_section(steps(records))
    parts.append(f"## {checked.title}\n\n{checked.text}\n")
    parts.append(figure_tables.markdown_table(checked.table.headings, checked.table.rows) + "\n")
    parts.append("## The policies\n\n" + figure_tables.policies_markdown() + "\n")
    page = output.with_name(f"{output.name}.md")
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


HEAD = """# Leaderboard of recompute policies

Model: `{model}`. *right*: greedy answers that are exact; *cold*: the same of a cold prefill;
*same answer*: token for token cold's; *to donor's*: answers that state a donor's fact where
cold's does not; *recomputed*: share of the tokens in spans that are reused in part; *declined*:
share of reusable tokens in spans that the policy recomputes whole; *probe*: extra compute to
choose, as a share of the prompt. Best first; among equals the cheaper.

`semblend leaderboard` makes this page (`--quick` a small one in two minutes).
"""


def _measure(
    console: Console,
    model: str,
    cells: Sequence[Cell],
    seed: int,
    folder: Path,
    device: str,
    dtype: str,
    processes: int,
) -> None:
    from semblend.engine.model import load_model
    from semblend.planning.certificates import find_depth_table
    from semblend.quality.drift import bring_drift
    from semblend.quality.lab import Lab
    from semblend.quality.shards import MeasurementJob, drift_of, measure_job

    with console.status(escape(f"loading {model}")):
        loaded = load_model(model, device=device, dtype=dtype)
    lab = Lab(loaded)
    number_format = str(loaded.kv_shape.dtype).removeprefix("torch.")
    shipped = find_depth_table(loaded.fingerprint, number_format)
    table = shipped or drift_of(folder.parent, number_format)
    job = MeasurementJob(
        model=model,
        device=device,
        dtype=dtype,
        cells=tuple(cells),
        seed=seed,
        folder=folder,
        drift=table,
        processes=processes,
    )
    try:
        bring_drift(lab, job, say=console.print)
        with one_total("leaderboard", job.records, console) as tell:
            measure_job(lab, job, tell)
    finally:
        lab.close()


def _records(folder: Path) -> list[Record]:
    from semblend.quality.certifying import TELLING, grid
    from semblend.quality.figures import cell_of
    from semblend.quality.shards import record_files
    from semblend.quality.suite import read_records

    wanted = {"cold", "none", *grid()}
    found = [
        record
        for record in read_records(record_files(folder))
        if cell_of(record) in TELLING and record.policy in wanted
    ]
    return sorted(found, key=lambda record: TELLING.index(cell_of(record)))
