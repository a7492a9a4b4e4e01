"""``sembench verify-endpoint``: what an endpoint serves and what it reports about a request."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from sembench.errors import UsageError
from sembench.terminal.live_options import BaseUrl, TimeoutSeconds, require_http, require_urls


def verify_endpoint(
    base_url: BaseUrl,
    engine: Annotated[str, typer.Option(help="Engine protocol: sglang or gateway.")] = "gateway",
    expect_model: Annotated[str | None, typer.Option(help="Model it must serve.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to request; default: the expected or first one.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Value of x-tenant-id in every request.")] = "",
    timeout_seconds: TimeoutSeconds = 30.0,
) -> None:
    """Check an endpoint and print what it reports about itself as JSON."""
    require_http()
    require_urls(base_url=base_url)

    from sembench.live.client import StreamingClient
    from sembench.live.identity import RequestIdentity
    from sembench.live.openai_client import OpenAIClient
    from sembench.live.sglang_client import SglangClient
    from sembench.live.verify import Verified, served_models, verify

    if engine not in ("sglang", "gateway"):
        raise UsageError(f"--engine: expected sglang or gateway, got {engine!r}")

    async def go() -> Verified:
        name = model or expect_model
        if name is None:
            models = await served_models(engine, base_url, timeout_seconds)
            name = models[0] if models else ""
        client: StreamingClient
        if engine == "sglang":
            client = SglangClient(
                base_url=base_url,
                caller=RequestIdentity(tenant=tenant),
                timeout_seconds=timeout_seconds,
            )
        else:
            client = OpenAIClient(
                base_url=base_url,
                model=name,
                caller=RequestIdentity(tenant=tenant),
                timeout_seconds=timeout_seconds,
            )
        async with client:
            return await verify(
                engine=engine,
                base_url=base_url,
                client=client,
                expect_model=expect_model,
                timeout_seconds=timeout_seconds,
            )

    typer.echo(json.dumps(asyncio.run(go()).to_dict(), indent=2))
