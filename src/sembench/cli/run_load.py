"""``sembench run-load``: many requests at once, and how many of them were good enough."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from sembench.cli import live_options as live
from sembench.cli.options import Manifest, MaxItems
from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.provenance import environment, run_metadata

LOAD_VERSION = "sembench.load.v1"


def run_load(
    manifest: Manifest,
    output: live.Output,
    base_url: Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible endpoint.")],
    model: live.Model,
    arrival: Annotated[
        ArrivalKind, typer.Option(help="poisson, constant or closed.")
    ] = ArrivalKind.CLOSED,
    rate: Annotated[float | None, typer.Option(help="Requests a second of open arrivals.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Users of a closed loop; most in flight of an open one.")
    ] = 8,
    requests: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    duration_seconds: Annotated[
        float | None, typer.Option(min=0, help="Stop sending then.")
    ] = None,
    warmup_seconds: Annotated[float, typer.Option(min=0, help="Not counted at the start.")] = 0.0,
    cooldown_seconds: Annotated[float, typer.Option(min=0, help="Not counted at the end.")] = 0.0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Time to first token allowed.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Time per output token.")] = None,
    slo_latency_ms: Annotated[float | None, typer.Option(help="Time to last token.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a request generates.")] = 32,
    serve_donors: Annotated[bool, typer.Option(help="Serve all donors first, unmeasured.")] = True,
    tenant: Annotated[str, typer.Option(help="x-tenant-id of every request.")] = "tenant-a",
    api_key: live.ApiKey = "",
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Per request.")] = 900.0,
    seed: Annotated[int, typer.Option(help="Of the arrival process.")] = 0,
    max_items: MaxItems = None,
    run_id: live.RunId = None,
    backend_id: live.BackendId = None,
    metrics_url: live.MetricsUrl = None,
) -> None:
    """Send recipients by an arrival process; report goodput under an objective."""
    config = live.recorded(locals())
    live.require_http()

    from sembench.live.identity import Caller
    from sembench.live.load import LoadOptions, Objective, SentRequest, summarise_load
    from sembench.live.load import run_load as send
    from sembench.live.openai_client import OpenAIClient
    from sembench.live.prometheus import window
    from sembench.live.prompt import Prompt
    from sembench.live.scrape import snapshot
    from sembench.manifests.files import read_manifest
    from sembench.progress import progress_bar

    run = run_metadata(engine="load", manifest=manifest, run_id=run_id, backend_id=backend_id)
    if requests is None and duration_seconds is None:
        requests = max_items
    options = LoadOptions(
        run_id=run.run_id,
        arrivals=Arrivals(kind=arrival, rate=rate, seed=seed),
        concurrency=concurrency,
        requests=requests,
        duration_seconds=duration_seconds,
        warmup_seconds=warmup_seconds,
        cooldown_seconds=cooldown_seconds,
        max_tokens=max_tokens,
    )
    objective = Objective(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms, latency_ms=slo_latency_ms)
    items = list(read_manifest(manifest, max_items=max_items))

    async def go() -> dict[str, Any]:
        async with OpenAIClient(
            base_url=base_url,
            model=model,
            caller=Caller(tenant=tenant, api_key=api_key),
            timeout_seconds=timeout_seconds,
            connections=concurrency + 4,
        ) as client:
            donors = [donor for item in items for donor in item.donor_prompts]
            for number, donor in enumerate(donors if serve_donors else ()):
                await client.complete(
                    Prompt(
                        request_id=f"sembench-load-donor-{number}", text=donor.text, max_tokens=1
                    )
                )
            before = await snapshot(metrics_url) if metrics_url else None
            sent: list[SentRequest] = []
            with progress_bar() as bar:
                task = bar.add_task("Sending", total=requests)
                async for request in send(client, items, options):
                    sent.append(request)
                    bar.advance(task)
            after = await snapshot(metrics_url) if metrics_url else None
        sent.sort(key=lambda request: request.due_s)
        return {
            "load_version": LOAD_VERSION,
            "run": run.to_dict(),
            "config": config,
            "environment": environment(),
            "engine": {"prometheus": window(before, after) if before and after else None},
            "aggregate": summarise_load(sent, objective, options),
            "requests": [request.to_dict() for request in sent],
        }

    report = asyncio.run(go())
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    aggregate = report["aggregate"]
    for name in (
        "completed",
        "failed",
        "requests_per_second",
        "goodput_requests_per_second",
        "slo_attainment",
    ):
        value = aggregate[name]
        typer.echo(f"{name:32} {'not measured' if value is None else format(value, '.4g')}")
    typer.echo(f"result: {output}")
