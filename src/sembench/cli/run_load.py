"""``sembench run-load``: send many requests at once and count how many met the objective."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.load_results import Objective
from sembench.terminal import live_options as live
from sembench.terminal.option_groups import takes


@takes(live.LoadFlags)
def run_load(
    flags: live.LoadFlags,
    base_url: live.BaseUrl,
    arrival: Annotated[
        ArrivalKind, typer.Option(help="Arrival process: poisson, constant or closed.")
    ] = ArrivalKind.CLOSED,
    rate: Annotated[float | None, typer.Option(help="Requests per second (open arrivals).")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Users of a closed loop, or in-flight limit of an open one.")
    ] = 8,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many requests.")
    ] = None,
    duration_seconds: Annotated[
        float | None, typer.Option(min=0.001, help="Stop sending after this many seconds.")
    ] = None,
    warmup_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds at the start not counted.")
    ] = 0.0,
    cooldown_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds at the end not counted.")
    ] = 0.0,
    slo_ttft_ms: Annotated[
        float | None, typer.Option(min=0, help="Longest time to first token allowed.")
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(min=0, help="Longest time per output token allowed.")
    ] = None,
    slo_latency_ms: Annotated[
        float | None, typer.Option(min=0, help="Longest time to last token allowed.")
    ] = None,
    max_tokens: live.MaxTokens = 32,
    serve_donors: Annotated[bool, typer.Option(help="Serve all donors first, unmeasured.")] = True,
    post_donor_delay_ms: live.PostDonorDelay = 0.0,
    donor_wait_ms: live.DonorWait = 5000.0,
    tenant: live.Tenant = "tenant-a",
    api_key: live.ApiKey = "",
    timeout_seconds: live.TimeoutSeconds = 900.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrival process.")] = 0,
) -> None:
    """Send recipients on an arrival schedule and report goodput under an objective."""
    own = {name: value for name, value in locals().items() if name != "flags"}
    live.require_http()
    live.require_urls(base_url=base_url, metrics_url=flags.metrics_url)

    from sembench.live.engine_counters import EngineCounters
    from sembench.live.identity import RequestIdentity
    from sembench.live.load import LoadOptions
    from sembench.live.load_session import LoadPlan, run_load_session
    from sembench.live.openai_client import OpenAIClient
    from sembench.live.verify import verify
    from sembench.manifests.files import read_manifest

    run = flags.run("load")
    items = list(read_manifest(flags.manifest, max_items=flags.max_items))
    if requests is None and duration_seconds is None:
        requests = len(items)
    plan = LoadPlan(
        output=flags.output,
        run=run,
        config=live.recorded({**flags.values(), **own}),
        options=LoadOptions(
            run_id=run.run_id,
            arrivals=Arrivals(kind=arrival, rate=rate, seed=seed),
            concurrency=concurrency,
            requests=requests,
            duration_seconds=duration_seconds,
            max_tokens=max_tokens,
        ),
        objective=Objective(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms, latency_ms=slo_latency_ms),
        warmup_seconds=warmup_seconds,
        cooldown_seconds=cooldown_seconds,
        serve_donors=serve_donors,
        post_donor_delay_ms=post_donor_delay_ms,
        donor_wait_ms=donor_wait_ms,
        metrics_urls=flags.metrics_url or (),
        flags=flags.engine_flags(),
        resume=flags.resume,
        max_consecutive_errors=flags.max_consecutive_errors,
    )

    async def go() -> dict[str, Any]:
        model = await live.model_named(flags.model, engine="gateway", base_url=base_url)
        counters = EngineCounters(
            flags.metrics_url or [EngineCounters.page_of(base_url)], api_key=api_key
        )
        async with (
            contextlib.aclosing(counters),
            OpenAIClient(
                base_url=base_url,
                model=model,
                caller=RequestIdentity(tenant=tenant, api_key=api_key),
                timeout_seconds=timeout_seconds,
                connections=concurrency + 4,
            ) as client,
        ):
            if not flags.skip_verify:
                found = await verify(
                    engine="gateway", base_url=base_url, client=client, expect_model=model
                )
                for warning in found.warnings:
                    typer.echo(f"warning: {warning}", err=True)
            return await run_load_session(plan, client, items, counters=counters)

    head = asyncio.run(go())
    if head["donors"]["failed"]:
        typer.echo(f"warning: {head['donors']['failed']} donors were not answered", err=True)
    if not head["aggregate"]["requests_counted"]:
        typer.echo("warning: warm-up and cool-down leave no request to count", err=True)
    for name in _SHOWN:
        value = head["aggregate"][name]
        typer.echo(f"{name:32} {'not measured' if value is None else format(value, '.4g')}")
    typer.echo(f"result: {flags.output}")


_SHOWN = (
    "completed",
    "failed",
    "requests_per_second",
    "goodput_requests_per_second",
    "slo_attainment",
)
