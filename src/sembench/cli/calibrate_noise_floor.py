"""``sembench calibrate-noise-floor``: how much do two cold runs of one prompt differ?"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from sembench.comparing.calibration import CALIBRATION_VERSION, summarise_reruns
from sembench.errors import EndpointError, UsageError
from sembench.provenance import environment, run_metadata
from sembench.terminal import live_options as live
from sembench.terminal.shared_options import Manifest


def calibrate_noise_floor(
    manifest: Manifest,
    output: live.Output,
    base_url: live.BaseUrl,
    model: live.Model = None,
    engine: Annotated[str, typer.Option(help="Engine protocol: sglang or gateway.")] = "gateway",
    reset_url: Annotated[
        list[str] | None, typer.Option(help="URL to POST to before every request; repeatable.")
    ] = None,
    max_items: Annotated[int, typer.Option(min=1, help="Items to ask twice.")] = 200,
    max_tokens: live.MaxTokens = 64,
    cooldown_ms: live.Cooldown = 0.0,
    warmup_requests: live.Warmup = 2,
    capture_logprobs: live.CaptureLogprobs = False,
    top_logprobs_num: live.TopLogprobs = 8,
    api_key: live.ApiKey = "",
    timeout_seconds: live.TimeoutSeconds = 900.0,
    run_id: live.RunId = None,
) -> None:
    """Serve every recipient cold twice. The difference is noise that no cache causes."""
    config = live.recorded(locals())
    live.require_http()
    live.require_urls(base_url=base_url, reset_url=reset_url)

    from sembench.live.client import StreamingClient
    from sembench.live.identity import RequestIdentity, RequestName
    from sembench.live.openai_client import OpenAIClient
    from sembench.live.prompt import Prompt
    from sembench.live.reply import Reply
    from sembench.live.sglang_client import SglangClient
    from sembench.manifests.files import read_manifest
    from sembench.progress import track

    if engine not in ("sglang", "gateway"):
        raise UsageError(f"--engine: expected sglang or gateway, got {engine!r}")
    run = run_metadata(engine=engine, manifest=manifest, run_id=run_id, arm="cold")
    resets = reset_url or ([base_url.rstrip("/") + "/flush_cache"] if engine == "sglang" else [])
    items = list(read_manifest(manifest, max_items=max_items))
    shared: dict[str, Any] = {
        "base_url": base_url,
        "caller": RequestIdentity(api_key=api_key),
        "timeout_seconds": timeout_seconds,
    }

    async def go() -> list[tuple[Reply, Reply]]:
        name = await live.model_named(model, engine=engine, base_url=base_url)
        client: StreamingClient = (
            SglangClient(**shared) if engine == "sglang" else OpenAIClient(model=name, **shared)
        )

        async def ask(item_id: str, text: str, role: str, position: int) -> Reply:
            for url in resets:
                await client.post(url)
            name = RequestName(
                run_id=run.run_id, arm="cold", item_id=item_id, role=role, position=position
            )
            # With no reset, a separate salt keeps each of the two runs cold.
            salt = "" if resets else str(name)
            reply = await client.complete(
                Prompt(
                    request_id=str(name),
                    text=text,
                    max_tokens=max_tokens,
                    cache_salt=salt,
                    top_logprobs=top_logprobs_num if capture_logprobs else 0,
                )
            )
            await asyncio.sleep(cooldown_ms / 1000.0)
            return reply

        async with client:
            for number in range(warmup_requests):
                await ask("warmup", "Say ready. Are you ready?", "warmup", number)
            pairs: list[tuple[Reply, Reply]] = []
            for position, item in track(
                enumerate(items), description="Calibrating", total=len(items)
            ):
                first = await ask(item.item_id, item.recipient_prompt, "first", position)
                second = await ask(item.item_id, item.recipient_prompt, "second", position)
                pairs.append((first, second))
            return pairs

    pairs = asyncio.run(go())
    if not any(first.ok and second.ok for first, second in pairs):
        last = next((reply.error for pair in reversed(pairs) for reply in pair if not reply.ok), "")
        raise EndpointError(f"none of {len(pairs)} items was answered twice; last error: {last}")
    report = {
        "calibration_version": CALIBRATION_VERSION,
        "run": run.to_dict(),
        "config": config,
        "environment": environment(),
        **summarise_reruns(pairs),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    typer.echo(f"{report['pairs']} pairs, {report['identical_answers']} identical answers")
    typer.echo(f"ROUGE-L {report['rouge_l']}")
    typer.echo(f"calibration: {output}")
