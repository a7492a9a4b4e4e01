"""``sembench run-live-gateway``: replay a manifest through any OpenAI-compatible endpoint."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from sembench.errors import UsageError
from sembench.terminal import live_options as live
from sembench.terminal.live_runs import Pace, Target, replay
from sembench.terminal.option_groups import takes


@takes(live.ReplayFlags)
def run_live_gateway(
    flags: live.ReplayFlags,
    base_url: live.BaseUrl,
    donor_url: Annotated[
        str | None, typer.Option(help="Base URL for donors; default: the recipients' URL.")
    ] = None,
    worker_url: Annotated[
        list[str] | None, typer.Option(help="Worker that receives donors in turn; repeatable.")
    ] = None,
    route: Annotated[str, typer.Option(help="API route: chat or completions.")] = "chat",
    api_key: live.ApiKey = "",
    tenant: live.Tenant = "tenant-a",
    template: Annotated[str, typer.Option(help="x-chat-template-id.")] = "rag-template-v1",
    donor_max_tokens: live.DonorMaxTokens = 1,
    max_tokens: live.MaxTokens = 256,
    timeout_seconds: live.TimeoutSeconds = 900.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Items to play at once.")] = 1,
    min_donor_gap_requests: Annotated[
        int, typer.Option(min=0, help="Minimum other requests between donors and recipient.")
    ] = 0,
    throughput_output: Annotated[
        Path | None, typer.Option(help="File to write requests and tokens per second to.")
    ] = None,
    reset_url: Annotated[
        list[str] | None, typer.Option(help="URL to POST to, to empty the caches; repeatable.")
    ] = None,
    isolate_by_salt: live.IsolateBySalt = None,
) -> None:
    """Serve donors, then recipients, and record the reuse the backend confirms."""
    own = {name: value for name, value in locals().items() if name != "flags"}
    live.require_http()
    live.require_urls(
        base_url=base_url,
        donor_url=donor_url,
        worker_url=worker_url,
        reset_url=reset_url,
        metrics_url=flags.metrics_url,
    )
    if reset_url and (concurrency > 1 or min_donor_gap_requests):
        raise UsageError(
            "--reset-url would empty the caches under every item in flight; with --concurrency "
            "or --min-donor-gap-requests use --isolate-by-salt"
        )
    if worker_url and donor_url:
        raise UsageError("give --donor-url or --worker-url, not both")

    from sembench.live.identity import RequestIdentity
    from sembench.live.openai_client import OpenAIClient, Route

    if route not in set(Route):
        raise UsageError(f"--route: expected chat or completions, got {route!r}")

    async def connect(stack: AsyncExitStack, tokenizer: str, model: str) -> Target:
        caller = RequestIdentity(
            tenant=tenant, template=template, tokenizer=tokenizer, api_key=api_key
        )

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

        gateway = await client(base_url)

        async def reset() -> None:
            for url in reset_url or ():
                await gateway.post(url)

        donor_urls = worker_url or ([donor_url] if donor_url else [])
        return Target(
            base_url=base_url,
            recipient=gateway,
            donors=[await client(url) for url in donor_urls],
            donor_urls=donor_urls,
            api_key=api_key,
            reset=reset if reset_url else None,
            isolate_by_salt=isolate_by_salt,
        )

    pace = Pace(
        donor_max_tokens=donor_max_tokens,
        recipient_max_tokens=max_tokens,
        concurrency=concurrency,
        min_donor_gap_requests=min_donor_gap_requests,
        throughput_output=throughput_output,
    )
    replay(flags, own, pace, engine="gateway", connect=connect)
