"""``sembench mock-engine``: an engine to test SemBench with, honest unless told to cheat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.mock_engine import Cheat, LogFormat, MockFault, MockSettings


def mock_engine(
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to bind to.")] = 8000,
    model: Annotated[str, typer.Option(help="Model name to report.")] = "mock-model",
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 16,
    prefix_cache: Annotated[bool, typer.Option(help="Keep an exact prefix cache.")] = True,
    semantic: Annotated[bool, typer.Option(help="Find and reuse spans of earlier prompts.")] = True,
    discovery_only: Annotated[
        bool, typer.Option("--discovery-only", help="Find spans but load nothing.")
    ] = False,
    min_span_tokens: Annotated[int, typer.Option(min=1, help="Shortest span to reuse.")] = 16,
    router: Annotated[
        bool, typer.Option("--router", help="Send a route header, as a gateway does.")
    ] = False,
    prefill_ms_per_token: Annotated[
        float, typer.Option(min=0, help="Delay per computed token.")
    ] = 0.05,
    decode_ms_per_token: Annotated[
        float, typer.Option(min=0, help="Delay per generated token.")
    ] = 1.0,
    lookup_ms: Annotated[float, typer.Option(min=0, help="Delay per lookup.")] = 0.0,
    cheat: Annotated[
        Cheat, typer.Option(help="A way to lie; see docs/mock-engine.md.")
    ] = Cheat.NONE,
    fault: Annotated[MockFault, typer.Option(help="Fault to inject.")] = MockFault.NONE,
    fault_every: Annotated[int, typer.Option(min=0, help="Fault every n-th completion.")] = 0,
    stall_seconds: Annotated[float, typer.Option(min=0, help="How long a stall lasts.")] = 30.0,
    log: Annotated[Path | None, typer.Option(help="Engine log to append to.")] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Engine log format.")] = LogFormat.VLLM,
    audit: Annotated[Path | None, typer.Option(help="Connector audit JSONL to append to.")] = None,
) -> None:
    """Serve a mock engine until interrupted."""
    from sembench.mock_engine.server import serve

    settings = MockSettings(
        model=model,
        block_size=block_size,
        prefix_cache=prefix_cache,
        semantic=semantic,
        discovery_only=discovery_only,
        min_span_tokens=min_span_tokens,
        router=router,
        prefill_ms_per_token=prefill_ms_per_token,
        decode_ms_per_token=decode_ms_per_token,
        lookup_ms=lookup_ms,
        cheat=cheat,
        fault=fault,
        fault_every=fault_every,
        stall_seconds=stall_seconds,
        log_path=log,
        log_format=log_format,
        audit_path=audit,
    )
    typer.echo(f"mock engine on http://{host}:{port} ({cheat} cheat)", err=True)
    serve(settings, host=host, port=port)
