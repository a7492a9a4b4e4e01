"""``sembench run-live-gateway``: replay a manifest through any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from sembench.cli import live_options as live
from sembench.cli.live_runs import show
from sembench.cli.options import BlockSize, Manifest, MaxItems, TokenizerName
from sembench.errors import UsageError
from sembench.live.replay import Arm, ReplayOptions
from sembench.provenance import run_metadata
from sembench.quality import PASS_THRESHOLD


def run_live_gateway(
    manifest: Manifest,
    output: live.Output,
    gateway_url: Annotated[str, typer.Option(help="Base URL that recipients are sent to.")],
    model: live.Model,
    donor_url: Annotated[
        str | None, typer.Option(help="Base URL donors are sent to; left out, the gateway.")
    ] = None,
    worker_url: Annotated[
        list[str] | None, typer.Option(help="Workers that donors go to in turn, repeatable.")
    ] = None,
    route: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    api_key: live.ApiKey = "",
    tenant: Annotated[str, typer.Option(help="x-tenant-id of every request.")] = "tenant-a",
    template: Annotated[str, typer.Option(help="x-chat-template-id.")] = "rag-template-v1",
    tokenizer: TokenizerName = None,
    block_size: BlockSize = 16,
    donor_max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a donor generates.")] = 1,
    recipient_max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens a recipient generates.")
    ] = 256,
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Per request.")] = 900.0,
    quality_threshold: live.QualityThreshold = PASS_THRESHOLD,
    post_donor_delay_ms: live.PostDonorDelay = 0.0,
    cooldown_ms: live.Cooldown = 0.0,
    warmup_requests: live.Warmup = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Items played at a time.")] = 1,
    min_donor_gap_requests: Annotated[
        int, typer.Option(min=0, help="Other requests between donors and recipient.")
    ] = 0,
    throughput_output: Annotated[
        Path | None, typer.Option(help="File for requests and tokens a second.")
    ] = None,
    paired: live.Paired = False,
    reset_url: Annotated[
        list[str] | None, typer.Option(help="Posted to, to empty caches; repeatable.")
    ] = None,
    isolate_by_salt: live.IsolateBySalt = None,
    contamination_check: live.ContaminationCheck = False,
    capture_logprobs: live.CaptureLogprobs = False,
    top_logprobs_num: live.TopLogprobs = 8,
    connector_audit: live.ConnectorAudit = None,
    max_items: MaxItems = None,
    resume: live.Resume = False,
    run_id: live.RunId = None,
    arm: live.ArmOption = Arm.SINGLE,
    backend_id: live.BackendId = None,
    baseline_id: live.BaselineId = None,
    engine_version: live.EngineVersion = None,
    skip_verify: live.SkipVerify = False,
    engine_serve_command: live.ServeCommand = "",
    engine_serve_command_file: live.ServeCommandFile = None,
    engine_env: live.EngineEnv = None,
    metrics_url: live.MetricsUrl = None,
    require_phase0_flags: live.RequireFlags = False,
    max_consecutive_errors: live.MaxConsecutiveErrors = 10,
) -> None:
    """Serve donors, then recipients, and record what the backend confirms."""
    config = live.recorded(locals())
    live.require_http()
    flags = live.engine_flags(
        engine_serve_command, engine_serve_command_file, engine_env, require=require_phase0_flags
    )
    if reset_url and (concurrency > 1 or min_donor_gap_requests):
        raise UsageError(
            "--reset-url empties the caches of every item in flight; with --concurrency or "
            "--min-donor-gap-requests use --isolate-by-salt"
        )

    from sembench.live.identity import Caller
    from sembench.live.openai_client import OpenAIClient, Route
    from sembench.live.replay import Replayer
    from sembench.live.rows import RowMaker
    from sembench.live.session import LivePlan, resumed_run_id, run_live
    from sembench.live.verify import verify
    from sembench.tokenizers import load_tokenizer

    if route not in set(Route):
        raise UsageError(f"--route: chat or completions expected, got {route!r}")
    encoder = load_tokenizer(tokenizer)
    run = run_metadata(
        engine="gateway",
        manifest=manifest,
        run_id=run_id or (resumed_run_id(output) if resume else None),
        arm=Arm.WARM if paired else arm,
        engine_version=engine_version,
        backend_id=backend_id,
        baseline_id=baseline_id,
    )
    caller = Caller(tenant=tenant, template=template, tokenizer=encoder.name, api_key=api_key)

    async def go() -> dict[str, Any]:
        async with contextlib.AsyncExitStack() as stack:

            async def client(url: str) -> OpenAIClient:
                return await stack.enter_async_context(
                    OpenAIClient(
                        base_url=url,
                        model=model,
                        caller=caller,
                        timeout_seconds=timeout_seconds,
                        route=Route(route),
                        connections=max(16, concurrency),
                    )
                )

            gateway = await client(gateway_url)
            workers = [
                await client(url) for url in worker_url or ([donor_url] if donor_url else [])
            ]

            async def reset() -> None:
                for url in reset_url or ():
                    await gateway.post(url)

            salted = bool(isolate_by_salt)
            if not skip_verify:
                found = await verify(
                    engine="gateway", base_url=gateway_url, client=gateway, expect_model=model
                )
                for warning in found.warnings:
                    typer.echo(f"warning: {warning}", err=True)
                if isolate_by_salt is None and not reset_url:
                    salted = found.reports["takes_cache_salt"]
            if paired and not (reset_url or salted):
                raise UsageError(
                    "--paired: the arms need empty caches; give --reset-url (vLLM: "
                    "…/reset_prefix_cache, SGLang: …/flush_cache) or --isolate-by-salt"
                )
            options = ReplayOptions(
                run_id=run.run_id,
                arm=arm,
                paired=paired,
                donor_max_tokens=donor_max_tokens,
                recipient_max_tokens=recipient_max_tokens,
                post_donor_delay_ms=post_donor_delay_ms,
                cooldown_ms=cooldown_ms,
                top_logprobs=top_logprobs_num if capture_logprobs else 0,
                isolate_by_salt=salted,
                contamination_check=contamination_check,
            )
            plan = LivePlan(
                manifest=manifest,
                output=output,
                run=run,
                config={
                    **config,
                    "tokenizer": encoder.name,
                    "isolation": "reset" if reset_url else "salt" if salted else "none",
                },
                arm=Arm.WARM if paired else arm,
                paired=paired,
                max_items=max_items,
                resume=resume,
                warmup_requests=warmup_requests,
                concurrency=concurrency,
                min_donor_gap_requests=min_donor_gap_requests,
                metrics_urls=metrics_url or (),
                flags=flags,
                connector_audit=connector_audit,
                throughput_output=throughput_output,
                max_consecutive_errors=max_consecutive_errors,
            )
            replayer = Replayer(
                recipient=gateway,
                donors=workers,
                rows=RowMaker(
                    tokenizer=encoder, block_size=block_size, quality_threshold=quality_threshold
                ),
                options=options,
                reset=reset if reset_url else None,
            )
            return await run_live(plan, replayer)

    show(asyncio.run(go()), output)
