"""What the two replay commands share: everything except the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sembench.errors import UsageError
from sembench.live.prompt import EngineClient
from sembench.live.replay import Arm, ReplayOptions, Reset
from sembench.terminal import live_options as live


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The endpoint a replay talks to."""

    base_url: str
    recipient: EngineClient
    donors: Sequence[EngineClient] = ()
    """Workers that receive donors in turn; if empty, donors go to the recipient's endpoint."""
    donor_urls: Sequence[str] = ()
    """URLs of those workers."""
    api_key: str = ""
    reset: Reset | None = None
    """Empties the caches, if the endpoint supports that."""
    isolate_by_salt: bool | None = False
    """None: use salts if there is no reset and the endpoint accepts a salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is requested, and how fast."""

    donor_max_tokens: int
    recipient_max_tokens: int
    concurrency: int = 1
    min_donor_gap_requests: int = 0
    throughput_output: Path | None = None


Connect = Callable[[AsyncExitStack, str, str], Awaitable[Target]]
"""Opens the clients, given the stack that closes them and the tokenizer and model names."""


def replay(
    flags: live.ReplayFlags, own: Mapping[str, Any], pace: Pace, *, engine: str, connect: Connect
) -> None:
    """Replay a manifest and write the result. `own` holds the flags only this command has."""
    config = live.recorded({**flags.values(), **own})
    engine_flags = flags.engine_flags()

    from sembench.live.engine_counters import EngineCounters
    from sembench.live.replay import Replayer
    from sembench.live.reply_rows import RowMaker
    from sembench.live.session import LivePlan, run_live
    from sembench.live.verify import verify
    from sembench.tokenizers import load_tokenizer

    encoder = load_tokenizer(flags.tokenizer)
    arm = Arm.WARM if flags.paired else flags.arm
    run = flags.run(engine, arm=arm)

    async def go() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            model = await live.model_named(
                flags.model, engine=engine, base_url=str(own["base_url"])
            )
            target = await connect(stack, encoder.name, model)
            pages = EngineCounters(
                flags.metrics_url
                or [EngineCounters.page_of(url) for url in (target.base_url, *target.donor_urls)],
                api_key=target.api_key,
            )
            stack.push_async_callback(pages.aclose)
            counters = None if await pages.read() is None else pages
            salted = bool(target.isolate_by_salt)
            if not flags.skip_verify:
                found = await verify(
                    engine=engine,
                    base_url=target.base_url,
                    client=target.recipient,
                    expect_model=model,
                )
                for warning in found.warnings:
                    typer.echo(f"warning: {warning}", err=True)
                if target.isolate_by_salt is None and target.reset is None:
                    salted = found.reports["takes_cache_salt"]
            if flags.paired and target.reset is None and not salted:
                raise UsageError(
                    "--paired: the arms need empty caches; pass --reset-url (vLLM: "
                    "…/reset_prefix_cache, SGLang: …/flush_cache) or --isolate-by-salt"
                )
            isolation = "reset" if target.reset is not None else "salt" if salted else "none"
            plan = LivePlan(
                manifest=flags.manifest,
                output=flags.output,
                run=run,
                config={
                    **config,
                    "model": model,
                    "tokenizer": encoder.name,
                    "isolation": isolation,
                    "engine_counters": counters is not None,
                },
                arm=arm,
                paired=flags.paired,
                max_items=flags.max_items,
                resume=flags.resume,
                warmup_requests=flags.warmup_requests,
                concurrency=pace.concurrency,
                min_donor_gap_requests=pace.min_donor_gap_requests,
                metrics_urls=flags.metrics_url or (),
                flags=engine_flags,
                connector_audit=flags.connector_audit,
                throughput_output=pace.throughput_output,
                max_consecutive_errors=flags.max_consecutive_errors,
            )
            replayer = Replayer(
                recipient=target.recipient,
                donors=target.donors,
                rows=RowMaker(
                    tokenizer=encoder,
                    block_size=flags.block_size,
                    quality_threshold=flags.quality_threshold,
                ),
                options=ReplayOptions(
                    run_id=run.run_id,
                    arm=flags.arm,
                    paired=flags.paired,
                    donor_max_tokens=pace.donor_max_tokens,
                    recipient_max_tokens=pace.recipient_max_tokens,
                    post_donor_delay_ms=flags.post_donor_delay_ms,
                    donor_wait_ms=flags.donor_wait_ms,
                    cooldown_ms=flags.cooldown_ms,
                    top_logprobs=flags.top_logprobs_num if flags.capture_logprobs else 0,
                    isolate_by_salt=salted,
                    contamination_check=flags.contamination_check,
                ),
                reset=target.reset,
                counters=counters,
                alone=pace.concurrency == 1,
            )
            return await run_live(plan, replayer)

    show(asyncio.run(go()), flags.output)


_SHOWN = (
    ("requests", "requests"),
    ("errors", "errors"),
    ("exact_block_hit_rate", "exact block hit rate"),
    ("backend_confirmed_block_rate", "backend-confirmed block rate"),
    ("backend_confirmed_lift", "backend-confirmed lift"),
    ("quality_pass_rate", "quality pass rate"),
    ("negative_control_backend_confirmed_rate", "negative controls confirmed"),
    ("ttft_ms_p50", "time to first token p50, ms"),
)
_SHOWN_PAIRED = (
    ("blended_ttft_speedup_median", "speed-up, blended (median)"),
    ("hit_ttft_speedup_median", "speed-up, hits (median)"),
    ("negative_control_speedup_median", "speed-up, negative controls (median)"),
    ("warm_vs_cold_rouge_l_mean", "warm vs cold ROUGE-L"),
    ("donor_fact_leak_rate", "donor fact leak rate"),
    ("propagation_contamination_rate", "contamination rate"),
)


def show(head: Mapping[str, Any], output: Path) -> None:
    """Print the run in a few lines, including what was not measured."""
    for section, names in ((head["aggregate"], _SHOWN), (head["paired"], _SHOWN_PAIRED)):
        for name, label in names if section else ():
            value = section.get(name)
            text = "not measured" if value is None else f"{value:.4g}"
            typer.echo(f"{label:40} {text}")
    typer.echo(f"result: {output}")
