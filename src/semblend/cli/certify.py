"""`semblend certify`: measure what reuse does to a model's answers, and record it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.planning.certificates import depth_table, file_name, users_folder
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.measured_engines import EngineKind
from semblend.terminal.progress import one_total
from semblend.terminal.tables import table

if TYPE_CHECKING:
    from semblend.quality.campaign import Campaign
    from semblend.quality.issuing import Issue
    from semblend.quality.shards import MeasurementJob


USERS_FOLDER = users_folder()


def said(context: typer.Context) -> str:
    """The command as given: every option that differs from its default, and the seeds."""
    words = ["semblend", context.info_name or ""]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        source = context.get_parameter_source(parameter.name or "")
        named = parameter.name in ("model", "dtype", "seed", "confirm_seed")
        if source is not None and source.name == "DEFAULT" and not named:
            continue
        option = max(parameter.opts, key=len)
        if isinstance(value, bool):
            words.append(option if value else max(parameter.secondary_opts, key=len))
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [option, str(one)]
    return shlex.join(words)


def certify(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="Model folder or hub name.")
    ] = "models/semblend-reference-27m",
    engine: Annotated[
        EngineKind, typer.Option(help="The engine that is measured: the one that will serve.")
    ] = EngineKind.EMBEDDED,
    server: Annotated[
        str, typer.Option(help="Measure the server at this URL instead; --model names its weights.")
    ] = "",
    engine_args: Annotated[
        str, typer.Option(help="Arguments of vLLM's LLM or SGLang's Engine, as JSON.")
    ] = "",
    until_sure: Annotated[
        bool | None,
        typer.Option(
            "--until-sure/--fixed-items",
            help="Go on until every limit is kept or broken beyond doubt; the embedded engine "
            "measures a fixed number of items unless told.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Until sure: 1 - how likely a broken limit may pass.")
    ] = 0.95,
    disagreement: Annotated[
        float,
        typer.Option(help="Until sure: how far answers that cannot be right may be from cold's."),
    ] = 0.10,
    recompute: Annotated[
        float,
        typer.Option(help="Until sure: most of what can be reused that may be computed again."),
    ] = 0.20,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer; models that talk or think need more.")
    ] = 24,
    estimate: Annotated[
        bool, typer.Option(help="Until sure: say how long it takes, and measure no more.")
    ] = False,
    items: Annotated[
        int, typer.Option(min=1, help="Items of every workload; until sure, the most of them.")
    ] = 200,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Prompt length in tokens, instead of 1K to 8K; repeatable."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Try only this policy; repeatable.")
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Also this workload: dialogue (chats of short turns) or ten_turns (the tenth "
                "question of a chat)."
            )
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Also real text: a folder or JSON lines of prompts, a file of LongBench's or "
            "SAMSum's form, or longbench:NAME."
        ),
    ] = None,
    from_audit: Annotated[
        Path | None,
        typer.Option(help="Also your own traffic: an audit stream with prompts (audit_prompts)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the documents that choose the policy.")] = 1,
    confirm_seed: Annotated[
        int, typer.Option(help="Seed of the documents that confirm the choice.")
    ] = 2,
    output: Annotated[
        Path, typer.Option(help="Folder for the certificate and its report.")
    ] = USERS_FOLDER,
    page: Annotated[
        Path | None, typer.Option(help="Also write the tables to this Markdown file.")
    ] = None,
    records: Annotated[
        Path, typer.Option(help="Folder for measurements; an interrupted run resumes from it.")
    ] = Path("results/certify"),
    answers: Annotated[
        float | None,
        typer.Option(
            help="How far answers of a workload may fall below cold's; 0.01, until sure 0.02."
        ),
    ] = None,
    kl_epsilon: Annotated[
        float, typer.Option(help="Mean KL allowed above cold's own noise, in nats.")
    ] = 0.02,
    least_items: Annotated[
        int, typer.Option(min=1, help="Fewest items per workload for a certificate.")
    ] = 200,
    redteam_items: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Valid red-team items required, none leaking; until sure and on CPUs 300, else "
            "5000.",
        ),
    ] = None,
    redteam_seed: Annotated[
        int | None, typer.Option(help="Seed of the red team; the confirming seed unless told.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    processes: Annotated[
        int, typer.Option(min=1, help="Measuring processes; on a GPU, use one per core.")
    ] = 1,
    measure: Annotated[
        bool, typer.Option(help="Measure what is missing; otherwise judge existing records.")
    ] = True,
    measured_on: Annotated[
        str, typer.Option(help="Hardware named in the certificate; detected if empty.")
    ] = "",
) -> None:
    """Measure policies against cold and certify the cheapest one within the bound."""
    console = Console()
    from semblend.engine.model import load_model
    from semblend.quality.bound import Bound
    from semblend.quality.campaign import Campaign
    from semblend.quality.suite import ON_REQUEST

    if seed == confirm_seed:
        raise SettingsError("--confirm-seed: another seed than --seed expected")
    for name in workload or ():
        if name not in ON_REQUEST:
            raise SettingsError(
                f"--workload: one of {', '.join(ON_REQUEST)} expected, got {name!r}"
            )
    policies = tuple(policy_from_spec(spec).spec for spec in policy or ())
    if from_audit is not None:
        if data is not None:
            raise SettingsError("--from-audit: not together with --data")
        data = f"audit:{from_audit}"
    served = bool(server) or engine is not EngineKind.EMBEDDED
    if until_sure if until_sure is not None else served:
        from semblend.cli.certify_until_sure import Wanted, certify_until_sure

        told = context.get_parameter_source("items")
        certify_until_sure(
            Wanted(
                model=model,
                engine=engine,
                server=server,
                engine_args=engine_args,
                device=device,
                dtype=dtype,
                policies=policies,
                lengths=tuple(length or ()),
                workloads=tuple(workload or ()),
                data=data,
                seed=seed,
                confirm_seed=confirm_seed,
                output=output,
                records=records,
                most_items=None if told is None or told.name == "DEFAULT" else items,
                answers=0.02 if answers is None else answers,
                disagreement=disagreement,
                kl_epsilon=kl_epsilon,
                recompute=recompute,
                confidence=confidence,
                redteam_items=300 if redteam_items is None else redteam_items,
                answer_tokens=answer_tokens,
                measured_on=measured_on,
                command=said(context),
            ),
            console,
            estimate=estimate,
        )
        return
    if served or estimate:
        raise SettingsError("--fixed-items: only the embedded engine, and without --estimate")
    with console.status(escape(f"loading {model}")):
        loaded = load_model(model, device=device, dtype=dtype)
    campaign = Campaign(
        model=loaded,
        path=model,
        device=device,
        dtype=dtype,
        folder=records,
        items=items,
        seed=seed,
        confirm_seed=confirm_seed,
        redteam_seed=redteam_seed,
        bound=Bound(
            kl_epsilon=kl_epsilon,
            answers=0.01 if answers is None else answers,
            items=least_items,
            redteam_items=_redteam_items(redteam_items, loaded.device.type),
        ),
        policies=policies,
        lengths=tuple(length or ()),
        workloads=tuple(workload or ()),
        data=data,
        processes=processes,
        measured_on=measured_on,
        command=said(context),
    )
    found = _run(campaign, console, output=output, page=page, measure=measure)
    if found.certificate is None:
        console.print("[bold red]no certificate:[/]", end=" ")
        console.print(f"{found.refusal}; reuse stays off", markup=False)
        raise typer.Exit(1)


def _redteam_items(told: int | None, device: str) -> int:
    """By default, what a GPU does in minutes. A CPU takes an hour for 300, which bound 1 %."""
    if told is not None:
        return told
    return 5000 if device == "cuda" else 300


def _run(
    campaign: Campaign, console: Console, *, output: Path, page: Path | None, measure: bool
) -> Issue:
    from semblend.kv.depth_drift import read_table
    from semblend.quality.drift import bring_drift
    from semblend.quality.embedded import MeasuredEmbedded
    from semblend.quality.lab import Lab
    from semblend.quality.redteam.jobs import RedTeamJob, attack, attack_in_processes
    from semblend.quality.reports import sections
    from semblend.quality.reports.certificate_report import report
    from semblend.quality.shards import measure_job

    with one_total("certify", campaign.amount, console) as tell:
        finished = 0

        def carry_out(job: MeasurementJob) -> None:
            nonlocal finished
            if not measure:
                return
            lab = Lab(campaign.model)
            try:
                bring_drift(lab, job, say=console.print)
                measure_job(lab, job, lambda done: tell(finished + done))
            finally:
                lab.close()
            finished += job.records

        def send_out(job: RedTeamJob) -> None:
            if not measure:
                return
            attempts = 0

            def attacked(job: RedTeamJob) -> None:
                nonlocal attempts
                attempts += 1
                # Findings are read from files, so not after every attempt.
                if job.processes > 1 or not attempts % 10:
                    tell(finished + min(job.items or 0, job.findings.items))

            if job.processes > 1:
                attack_in_processes(job, attacked)
                return
            shifts = policy_from_spec(job.policy).shifts_depth
            lab = Lab(campaign.model, drift=read_table(campaign.drift) if shifts else None)
            try:
                attack(MeasuredEmbedded(lab), job, attacked)
            finally:
                lab.close()

        found, curves = campaign.run(carry_out, send_out)
    name = Path(campaign.path).name
    stem = f"{name}-{campaign.model.fingerprint}"
    output.mkdir(parents=True, exist_ok=True)
    if found.certificate is not None:
        path = output / file_name(found.certificate)
        path.write_text(found.certificate.to_json(), encoding="utf-8")
        if policy_from_spec(found.certificate.policy).shifts_depth:
            depth_table(path).write_bytes(campaign.drift.read_bytes())
        stem = path.stem
        console.print(f"certificate: [bold]{path}[/]")
        console.print(f"policy: {found.certificate.policy}", markup=False)
    html = report(
        model=name,
        bound=campaign.bound,
        found=found,
        curves=curves,
        facts={
            "fingerprint of the weights": campaign.model.fingerprint,
            "number format": str(campaign.model.kv_shape.dtype).removeprefix("torch."),
            "items per workload": campaign.items,
            "records": len(found.choice.records)
            + (len(found.confirmation.records) if found.confirmation else 0),
            "seeds": f"{campaign.seed} to choose, {campaign.confirm_seed} to confirm",
            "measured on": campaign.hardware,
            "command": campaign.command,
        },
    )
    (output / f"{stem}.html").write_text(html, encoding="utf-8")
    if page is not None:
        text = sections.page(found, model=name, command=campaign.command)
        page.write_text(text, encoding="utf-8")
    console.print(_table(found))
    console.print(f"report: [bold]{output / stem}.html[/]")
    return found


def _table(found: Issue) -> Table:
    made = table(
        *("policy", "recomputed", "when choosing", "when confirming"),
        title="policies, cheapest first",
    )
    for judged in found.choice.judged_policies:
        fresh = found.confirmation.judged_policy(judged.policy) if found.confirmation else None
        made.add_row(
            judged.policy,
            f"{judged.recompute:.1%}",
            _said(judged.objections),
            "not measured" if fresh is None else _said(fresh.objections),
        )
    return made


def _said(objections: Sequence[str]) -> str:
    said = "; ".join(objections[:2]) or "[green]within the bound[/]"
    return said + (f"; and {len(objections) - 2} more" if len(objections) > 2 else "")
