"""``sembench run-live-sglang``: replay a manifest through SGLang's native protocol."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from sembench.cli import live_options as live
from sembench.cli.live_runs import show
from sembench.cli.options import BlockSize, Manifest, MaxItems, TokenizerName
from sembench.errors import UsageError
from sembench.live.replay import Arm, ReplayOptions
from sembench.provenance import run_metadata
from sembench.quality import PASS_THRESHOLD


def run_live_sglang(
    manifest: Manifest,
    output: live.Output,
    base_url: Annotated[str, typer.Option(help="Base URL of the SGLang server.")],
    model: live.Model,
    tokenizer: TokenizerName = None,
    block_size: BlockSize = 16,
    donor_max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens a donor generates.")] = 1,
    recipient_max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens a recipient generates.")
    ] = 16,
    post_donor_delay_ms: live.PostDonorDelay = 0.0,
    no_flush_per_item: Annotated[
        bool, typer.Option("--no-flush-per-item", help="Leave the cache as it is between items.")
    ] = False,
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Per request.")] = 3600.0,
    quality_threshold: live.QualityThreshold = PASS_THRESHOLD,
    paired: live.Paired = False,
    warmup_requests: live.Warmup = 0,
    cooldown_ms: live.Cooldown = 0.0,
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
    """Flush, serve donors, serve the recipient, and record what meta_info says."""
    config = live.recorded(locals())
    live.require_http()
    flags = live.engine_flags(
        engine_serve_command, engine_serve_command_file, engine_env, require=require_phase0_flags
    )
    if paired and no_flush_per_item:
        raise UsageError("--paired needs empty caches; leave --no-flush-per-item out")

    from sembench.live.identity import Caller
    from sembench.live.replay import Replayer
    from sembench.live.rows import RowMaker
    from sembench.live.session import LivePlan, resumed_run_id, run_live
    from sembench.live.sglang_client import SglangClient
    from sembench.live.verify import verify
    from sembench.tokenizers import load_tokenizer

    encoder = load_tokenizer(tokenizer)
    run = run_metadata(
        engine="sglang",
        manifest=manifest,
        run_id=run_id or (resumed_run_id(output) if resume else None),
        arm=Arm.WARM if paired else arm,
        engine_version=engine_version,
        backend_id=backend_id,
        baseline_id=baseline_id,
    )
    options = ReplayOptions(
        run_id=run.run_id,
        arm=arm,
        paired=paired,
        donor_max_tokens=donor_max_new_tokens,
        recipient_max_tokens=recipient_max_new_tokens,
        post_donor_delay_ms=post_donor_delay_ms,
        cooldown_ms=cooldown_ms,
        top_logprobs=top_logprobs_num if capture_logprobs else 0,
        contamination_check=contamination_check,
    )
    plan = LivePlan(
        manifest=manifest,
        output=output,
        run=run,
        config={**config, "tokenizer": encoder.name},
        arm=Arm.WARM if paired else arm,
        paired=paired,
        max_items=max_items,
        resume=resume,
        warmup_requests=warmup_requests,
        metrics_urls=metrics_url or (),
        flags=flags,
        connector_audit=connector_audit,
        max_consecutive_errors=max_consecutive_errors,
    )

    async def go() -> dict[str, Any]:
        async with SglangClient(
            base_url=base_url, caller=Caller(), timeout_seconds=timeout_seconds
        ) as client:
            if not skip_verify:
                found = await verify(
                    engine="sglang", base_url=base_url, client=client, expect_model=model
                )
                for warning in found.warnings:
                    typer.echo(f"warning: {warning}", err=True)
            replayer = Replayer(
                recipient=client,
                donors=(),
                rows=RowMaker(
                    tokenizer=encoder, block_size=block_size, quality_threshold=quality_threshold
                ),
                options=options,
                reset=None if no_flush_per_item else client.flush,
            )
            return await run_live(plan, replayer)

    show(asyncio.run(go()), output)
