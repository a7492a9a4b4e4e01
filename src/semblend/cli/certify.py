"""`semblend certify`: measure what reuse does to a model's answers, and write it down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from semblend.core.errors import SemBlendError
from semblend.planning.certificates import file_name
from semblend.planning.policies.base import policy_from_spec

if TYPE_CHECKING:
    from semblend.quality.bound import Bound
    from semblend.quality.issuing import Issue
    from semblend.quality.lab import Lab
    from semblend.quality.suite import Cell


USERS_FOLDER = Path.home() / ".cache" / "semblend" / "certificates"
CURVE_ITEMS = 8


class EngineKind(StrEnum):
    """Engines that can be measured."""

    EMBEDDED = "embedded"


def certify(
    model: Annotated[
        str, typer.Option(help="Folder or hub name of the model.")
    ] = "models/semblend-reference-27m",
    engine: Annotated[
        EngineKind, typer.Option(help="What carries plans out.")
    ] = EngineKind.EMBEDDED,
    items: Annotated[int, typer.Option(min=1, help="Items of every workload.")] = 200,
    length: Annotated[
        list[int] | None, typer.Option(help="Prompt lengths in tokens, instead of 1K to 8K.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Try only this policy; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Also real questions: JSON lines in LongBench's form.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the documents.")] = 1,
    output: Annotated[
        Path, typer.Option(help="Folder of the certificate and its report.")
    ] = USERS_FOLDER,
    records: Annotated[
        Path, typer.Option(help="Folder of what was measured; a run goes on where it stopped.")
    ] = Path("results/certify"),
    kl_epsilon: Annotated[
        float, typer.Option(help="Mean KL allowed above cold's own noise, nats.")
    ] = 0.02,
    answers: Annotated[
        float, typer.Option(help="How far answer metrics may fall below cold's.")
    ] = 0.01,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    measure: Annotated[
        bool, typer.Option(help="Measure what is missing; otherwise judge what is there.")
    ] = True,
    measured_on: Annotated[
        str, typer.Option(help="The hardware, for the certificate; found out if empty.")
    ] = "",
) -> None:
    """Measure policies against cold and write a certificate for the cheapest inside the bound."""
    console = Console()
    try:
        from semblend.quality.bound import Bound

        found = _run(
            console=console,
            model=model,
            items=items,
            lengths=tuple(length or ()),
            policies=tuple(policy_from_spec(spec).spec for spec in policy or ()),
            data=data,
            seed=seed,
            output=output,
            folder=records,
            bound=Bound(kl_epsilon=kl_epsilon, answers=answers),
            device=device,
            dtype=dtype,
            measure=measure,
            measured_on=measured_on,
        )
    except SemBlendError as error:
        Console(stderr=True).print(f"semblend certify: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    if found.certificate is None:
        console.print("[bold red]no certificate:[/] no policy keeps the bound; reuse stays off")
        raise typer.Exit(1)


def _run(
    *,
    console: Console,
    model: str,
    items: int,
    lengths: tuple[int, ...],
    policies: tuple[str, ...],
    data: Path | None,
    seed: int,
    output: Path,
    folder: Path,
    bound: Bound,
    device: str,
    dtype: str,
    measure: bool,
    measured_on: str,
) -> Issue:
    from semblend.engine.model import load_model
    from semblend.quality.certifying import certificate_cells
    from semblend.quality.issuing import issue, read_curves
    from semblend.quality.items import data_fingerprint
    from semblend.quality.lab import Lab
    from semblend.quality.report import report
    from semblend.quality.suite import items_of, read_records

    with console.status(f"loading {model}"):
        loaded = load_model(model, device=device, dtype=dtype)
    cells = certificate_cells(items, data=data, lengths=lengths or None, policies=policies)
    lab = Lab(loaded)
    try:
        if measure:
            measure_cells(lab, cells, folder, seed=seed, console=console)
        records = [
            record
            for record in read_records(sorted(folder.glob("records*.jsonl")))
            if data is not None or record.workload != "reading"
        ]
        curves = read_curves(sorted(folder.glob("curves*.jsonl")))
        with console.status("judging"):
            found = issue(
                records,
                curves,
                model=loaded,
                bound=bound,
                data={
                    "fingerprint": data_fingerprint(items_of(cells, seed, loaded.tokenizer)),
                    "items": items,
                    "seed": seed,
                    "workloads": sorted({cell.workload for cell in cells}),
                    "records": len(records),
                    "real_text": None if data is None else data.name,
                },
                measured_on=measured_on or str(loaded.device),
            )
    finally:
        lab.close()
    output.mkdir(parents=True, exist_ok=True)
    page = report(
        model=Path(model).name,
        bound=bound,
        verdicts=found.verdicts,
        chosen=found.chosen,
        figures=found.figures,
        curves=curves,
        noise=found.noise,
        facts={
            "fingerprint of the weights": loaded.fingerprint,
            "number format": str(loaded.kv_shape.dtype).removeprefix("torch."),
            "items a workload": items,
            "records": len(records),
            "measured on": measured_on or str(loaded.device),
        },
    )
    name = f"{Path(model).name}-{loaded.fingerprint}.html"
    if found.certificate is not None:
        path = output / file_name(found.certificate)
        path.write_text(found.certificate.to_json(), encoding="utf-8")
        name = path.with_suffix(".html").name
        console.print(f"certificate: [bold]{path}[/]\npolicy: {found.certificate.policy}")
    (output / name).write_text(page, encoding="utf-8")
    console.print(_table(found))
    console.print(f"report: [bold]{output / name}[/]")
    return found


def measure_cells(
    lab: Lab, cells: Sequence[Cell], folder: Path, *, seed: int, console: Console
) -> None:
    """Measure what the folder does not hold yet, with a bar a workload."""
    from semblend.quality.certifying import CANDIDATES, CURVED
    from semblend.quality.curves import curves
    from semblend.quality.items import to_item
    from semblend.quality.suite import Records, read_records, run_cells

    folder.mkdir(parents=True, exist_ok=True)
    records = Records(folder / "records.jsonl")
    others = [path for path in folder.glob("records*.jsonl") if path != records.path]
    records.leave_out((record.case_id, record.policy) for record in read_records(sorted(others)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        tasks = {
            cell.workload: bars.add_task(cell.workload, total=cell.items, visible=False)
            for cell in cells
        }

        def progress(workload: str, done: int, total: int) -> None:
            bars.update(tasks[workload], completed=done, visible=True)

        run_cells(lab, cells, records, seed=seed, progress=progress)
        path = folder / "curves.jsonl"
        if not path.exists():
            drawn = [cell for cell in cells if cell.workload in CURVED]
            bar = bars.add_task("deviation curves", total=len(drawn))
            lines: list[str] = []
            for cell in drawn:
                for case in list(cell.cases(seed))[:CURVE_ITEMS]:
                    item = to_item(case, lab.model.tokenizer)
                    for curve in curves(lab, item, ["none", CANDIDATES[0]]):
                        lines.append(json.dumps(curve.to_dict()) + "\n")
                bars.advance(bar)
            path.write_text("".join(lines), encoding="utf-8")


def _table(found: Issue) -> Table:
    table = Table(title="policies, cheapest first")
    table.add_column("policy")
    table.add_column("recomputed", justify="right")
    table.add_column("verdict")
    for verdict in found.verdicts:
        said = "; ".join(verdict.objections[:2]) or "[green]keeps the bound[/]"
        if len(verdict.objections) > 2:
            said += f"; and {len(verdict.objections) - 2} more"
        table.add_row(verdict.policy, f"{verdict.recompute:.1%}", said)
    return table
