"""`semblend redteam`: search for text that makes a policy answer with a donor's fact."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.planning.certificates import find_depth_table, look_up
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.progress import one_total

if TYPE_CHECKING:
    from semblend.engine.model import LoadedModel
    from semblend.quality.redteam.finds import Findings
    from semblend.quality.redteam.jobs import RedTeamJob


def redteam(
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    minutes: Annotated[float, typer.Option(min=0, help="Minutes to search.")] = 10.0,
    items: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many valid items.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy to attack; default: the certified one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 1,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for attempts and findings; an interrupted search resumes from it."
        ),
    ] = Path("results/redteam"),
    learn: Annotated[
        Path | None, typer.Option(help="Also add findings to this regression set.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    processes: Annotated[
        int, typer.Option(min=1, help="Searching processes; on a GPU, use one per core.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search text structures for a leak. Exits with 1 if it finds one."""
    console = Console(stderr=True)
    job = _attack(console, model, minutes, items, policy, seed, output, device, dtype, processes)
    if learn is not None:
        from semblend.quality.redteam.regressions import added, regressions, write_regressions

        known = regressions(learn) if learn.exists() else []
        write_regressions(learn, added(known, job.attempts, policy=job.policy))
    found = job.findings
    text = json.dumps(found.to_dict(), indent=2)
    (output / f"{job.stem}.json").write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        _show(found)
    if found.leaks:
        raise typer.Exit(1)


def _attack(
    console: Console,
    model: str,
    minutes: float,
    items: int | None,
    policy: str | None,
    seed: int,
    output: Path,
    device: str,
    dtype: str,
    processes: int,
) -> RedTeamJob:
    from semblend.engine.model import load_model
    from semblend.kv.depth_drift import read_table
    from semblend.quality.lab import Lab
    from semblend.quality.redteam.jobs import RedTeamJob, attack, attack_in_processes

    with console.status(escape(f"loading {model}")):
        loaded = load_model(model, device=device, dtype=dtype)
    spec, drift = _policy(loaded, policy)
    output.mkdir(parents=True, exist_ok=True)
    job = RedTeamJob(
        model=model,
        device=device,
        dtype=_number_format(loaded),
        policy=spec,
        seed=seed,
        folder=output,
        drift=drift,
        items=items,
        seconds=60 * minutes,
        processes=processes,
    )
    what, total = ("red team, items", items) if items else ("red team, seconds", int(60 * minutes))
    with one_total(what, total, console) as progress:
        started, attempts, leaks = time.monotonic(), 0, 0

        def tell(job: RedTeamJob) -> None:
            nonlocal attempts, leaks
            attempts += 1
            # Findings are read from files, so not after every attempt.
            if attempts % 10 and processes == 1:
                return
            found = job.findings
            progress(min(total, found.items if items else int(time.monotonic() - started)))
            if found.leaks > leaks:
                leaks = found.leaks
                console.print(found.sentence, highlight=False, markup=False, soft_wrap=True)

        if processes > 1:
            attack_in_processes(job, tell)
        else:
            lab = Lab(loaded, drift=None if drift is None else read_table(drift))
            try:
                attack(lab, job, tell)
            finally:
                lab.close()
    return job


def _number_format(model: LoadedModel) -> str:
    return str(model.kv_shape.dtype).removeprefix("torch.")


def _policy(model: LoadedModel, told: str | None) -> tuple[str, Path | None]:
    """The policy to attack, and the depth table it needs."""
    dtype = _number_format(model)
    standing = look_up(model.fingerprint, dtype=dtype)
    spec = told or standing.policy
    if spec is None:
        raise SettingsError(f"--policy: required, because {standing.detail}")
    policy = policy_from_spec(spec)
    if not policy.shifts_depth:
        return policy.spec, None
    drift = find_depth_table(model.fingerprint, dtype)
    if drift is None:
        raise SettingsError(
            f"{policy.spec} shifts depths and needs the table that `semblend certify` makes"
        )
    return policy.spec, drift


def _show(found: Findings) -> None:
    from semblend.quality.redteam.summaries import FIND_HEADINGS, find_rows

    console = Console()
    console.print(found.policy, markup=False)
    console.print(found.sentence, markup=False)
    if found.finds:
        table = Table(title="findings, reduced")
        for heading in FIND_HEADINGS:
            table.add_column(heading)
        for row in find_rows(found.finds):
            table.add_row(*row)
        console.print(table)
    if found.hardly_tried:
        said = ", ".join(found.hardly_tried)
        console.print(f"could not be judged (cold fails or too few items): {said}", markup=False)
