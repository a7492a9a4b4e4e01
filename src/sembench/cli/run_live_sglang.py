"""``sembench run-live-sglang``: replay a manifest through SGLang's native protocol."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from sembench.errors import UsageError
from sembench.terminal import live_options as live
from sembench.terminal.live_runs import Pace, Target, replay
from sembench.terminal.option_groups import takes


@takes(live.ReplayFlags)
def run_live_sglang(
    flags: live.ReplayFlags,
    base_url: live.BaseUrl,
    donor_max_tokens: live.DonorMaxTokens = 1,
    max_tokens: live.MaxTokens = 16,
    no_flush_per_item: Annotated[
        bool, typer.Option("--no-flush-per-item", help="Do not flush the cache between items.")
    ] = False,
    timeout_seconds: live.TimeoutSeconds = 3600.0,
) -> None:
    """Flush, serve the donors, serve the recipient, and record what meta_info reports."""
    own = {name: value for name, value in locals().items() if name != "flags"}
    live.require_http()
    live.require_urls(base_url=base_url, metrics_url=flags.metrics_url)
    if flags.paired and no_flush_per_item:
        raise UsageError("--paired needs empty caches; drop --no-flush-per-item")

    from sembench.live.identity import RequestIdentity
    from sembench.live.sglang_client import SglangClient

    async def connect(stack: AsyncExitStack, tokenizer: str, model: str) -> Target:
        client = await stack.enter_async_context(
            SglangClient(
                base_url=base_url, caller=RequestIdentity(), timeout_seconds=timeout_seconds
            )
        )
        return Target(
            base_url=base_url,
            recipient=client,
            reset=None if no_flush_per_item else client.flush,
        )

    pace = Pace(donor_max_tokens=donor_max_tokens, recipient_max_tokens=max_tokens)
    replay(flags, own, pace, engine="sglang", connect=connect)
