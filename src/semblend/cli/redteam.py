"""`semblend redteam`: search for text that makes a policy answer with a donor's fact."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.planning.certificates import find_depth_table, look_up
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.measured_engines import (
    EngineKind,
    WantedEngine,
    fingerprint_of,
    started,
)
from semblend.terminal.progress import one_total

if TYPE_CHECKING:
    from semblend.engine.model import LoadedModel
    from semblend.quality.redteam.finds import Findings
    from semblend.quality.redteam.jobs import RedTeamJob, Tell

LONGEST = 2048
"""Tokens of the red team's longest prompts, for a table of depth drift that is not there yet."""


def redteam(
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    engine: Annotated[
        EngineKind, typer.Option(help="The engine to attack: the one that serves.")
    ] = EngineKind.EMBEDDED,
    server: Annotated[
        str, typer.Option(help="Attack the server at this URL instead; --model names its weights.")
    ] = "",
    engine_args: Annotated[
        str, typer.Option(help="Arguments of vLLM's LLM or SGLang's Engine, as JSON.")
    ] = "",
    answer_tokens: Annotated[
        int,
        typer.Option(min=1, help="Tokens of an answer; models that talk or think need more."),
    ] = 24,
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
    unaided: Annotated[
        bool, typer.Option(help="Start from nothing, not around the shipped regressions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search text structures for a leak. Exits with 1 if it finds one."""
    console = Console(stderr=True)
    if server or engine is not EngineKind.EMBEDDED:
        if processes > 1:
            raise SettingsError("--processes: only with the embedded engine; others batch items")
        spec = _named_or_certified(policy, fingerprint_of(model), dtype)
        wanted = WantedEngine(
            model=model,
            kind=engine,
            server=server,
            engine_args=engine_args,
            device=device,
            dtype=dtype,
            policies=(spec,),
            named=True,
            longest=LONGEST,
            records=output,
            measures_table=False,
            answer_tokens=answer_tokens,
        )
        job = _attack_served(console, wanted, minutes, items, seed, unaided)
    else:
        job = _attack(
            console, model, minutes, items, policy, seed, output, device, dtype, processes, unaided
        )
    if learn is not None:
        from semblend.quality.redteam.regressions import added, regressions, write_regressions

        known = regressions(learn) if learn.exists() else []
        write_regressions(learn, added(known, job.attempts, policy=job.policy))
    found = job.findings
    text = json.dumps(found.to_dict(), indent=2)
    (job.folder / f"{job.stem}.json").write_text(text + "\n", encoding="utf-8")
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
    unaided: bool,
) -> RedTeamJob:
    from semblend.engine.model import load_model
    from semblend.kv.depth_drift import read_table
    from semblend.quality.embedded import MeasuredEmbedded
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
        unaided=unaided,
    )
    with _telling(job, console) as tell:
        if processes > 1:
            attack_in_processes(job, tell)
        else:
            lab = Lab(loaded, drift=None if drift is None else read_table(drift))
            try:
                attack(MeasuredEmbedded(lab), job, tell)
            finally:
                lab.close()
    return job


def _attack_served(
    console: Console,
    wanted: WantedEngine,
    minutes: float,
    items: int | None,
    seed: int,
    unaided: bool,
) -> RedTeamJob:
    """Search through an engine that serves, in a folder of its own."""
    from semblend.quality.redteam.jobs import RedTeamJob, attack

    with started(wanted, console) as running:
        facts = running.engine.facts
        job = RedTeamJob(
            model=wanted.model,
            device=wanted.device,
            dtype=facts.dtype,
            policy=running.policies[0],
            seed=seed,
            folder=wanted.records / facts.engine,
            items=items,
            seconds=60 * minutes,
            unaided=unaided,
        )
        job.folder.mkdir(parents=True, exist_ok=True)
        with _telling(job, console) as tell:
            attack(running.engine, job, tell)
    return job


@contextmanager
def _telling(job: RedTeamJob, console: Console) -> Iterator[Tell]:
    """Progress of a search, and every new leak."""
    items, seconds = job.items, int(job.seconds or 0)
    what, total = ("red team, items", items) if items else ("red team, seconds", seconds)
    with one_total(what, total, console) as progress:
        begun, attempts, leaks = time.monotonic(), 0, 0

        def tell(job: RedTeamJob) -> None:
            nonlocal attempts, leaks
            attempts += 1
            # Findings are read from files, so not after every attempt.
            if attempts % 10 and job.processes == 1:
                return
            found = job.findings
            progress(min(total, found.items if items else int(time.monotonic() - begun)))
            if found.leaks > leaks:
                leaks = found.leaks
                console.print(found.sentence, highlight=False, markup=False, soft_wrap=True)

        yield tell


def _number_format(model: LoadedModel) -> str:
    return str(model.kv_shape.dtype).removeprefix("torch.")


def _policy(model: LoadedModel, told: str | None) -> tuple[str, Path | None]:
    """The policy to attack, and the depth table it needs."""
    dtype = _number_format(model)
    policy = policy_from_spec(_named_or_certified(told, model.fingerprint, dtype))
    if not policy.shifts_depth:
        return policy.spec, None
    drift = find_depth_table(model.fingerprint, dtype)
    if drift is None:
        raise SettingsError(
            f"{policy.spec} shifts depths and needs the table that `semblend certify` makes"
        )
    return policy.spec, drift


def _named_or_certified(told: str | None, fingerprint: str, dtype: str) -> str:
    standing = look_up(fingerprint, dtype=None if dtype == "auto" else dtype)
    spec = told or standing.policy
    if spec is None:
        raise SettingsError(f"--policy: required, because {standing.detail}")
    return spec


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
