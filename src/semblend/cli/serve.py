"""`semblend serve`: the embedded engine behind OpenAI's API, with a page to watch it."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from semblend.cli.serve_config import read_config, settings_given
from semblend.core.errors import MissingExtraError, SemBlendError
from semblend.core.json_text import parse_json
from semblend.core.settings import Settings
from semblend.engine.options import EngineOptions
from semblend.serve.options import ServeOptions


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


_LIMITS = "Limits"
_TENANCY = "Tenancy and security"
_ENGINE = "Engine"


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model folder or a Hugging Face hub name.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    model_name: Annotated[
        str, typer.Option(help="Name clients put in 'model'; the folder's or hub name if empty.")
    ] = "",
    log_level: Annotated[LogLevel, typer.Option(help="Least level logged.")] = LogLevel.INFO,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML or TOML file of these flags, and of settings; flags win.",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    audit_path: Annotated[
        Path | None,
        typer.Option(help="File of one JSON line a request, for `semblend report`."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="JSON file of API keys and their tenants.", rich_help_panel=_TENANCY),
    ] = None,
    trust_tenant_header: Annotated[
        bool,
        typer.Option(
            help="Take the tenant from x-tenant-id (with keys: from admin keys only).",
            rich_help_panel=_TENANCY,
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name accepted in the Host header.", rich_help_panel=_TENANCY),
    ] = None,
    public_metrics: Annotated[
        bool,
        typer.Option(help="Serve /metrics without an admin key.", rich_help_panel=_TENANCY),
    ] = False,
    allow_policy_override: Annotated[
        bool,
        typer.Option(help="Let requests choose their recompute policy.", rich_help_panel=_TENANCY),
    ] = False,
    max_concurrent: Annotated[
        int, typer.Option(help="Requests in the engine at a time.", rich_help_panel=_LIMITS)
    ] = 16,
    max_queued: Annotated[
        int, typer.Option(help="Requests that may wait for a place.", rich_help_panel=_LIMITS)
    ] = 64,
    max_concurrent_per_tenant: Annotated[
        int,
        typer.Option(help="Requests of one tenant at a time; 0: any.", rich_help_panel=_LIMITS),
    ] = 0,
    requests_per_minute: Annotated[
        int,
        typer.Option(help="Requests of one tenant a minute; 0: any.", rich_help_panel=_LIMITS),
    ] = 0,
    max_body_bytes: Annotated[
        int, typer.Option(help="Largest request body.", rich_help_panel=_LIMITS)
    ] = 8 * 2**20,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt accepted.", rich_help_panel=_LIMITS)
    ] = None,
    max_output_tokens: Annotated[
        int, typer.Option(help="Most tokens a request may ask for.", rich_help_panel=_LIMITS)
    ] = 4096,
    queue_timeout: Annotated[
        float, typer.Option(help="Seconds a request may wait.", rich_help_panel=_LIMITS)
    ] = 30.0,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds a request may take.", rich_help_panel=_LIMITS)
    ] = 300.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds requests may finish in after a stop signal.", rich_help_panel=_LIMITS
        ),
    ] = 20.0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=_ENGINE)
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(help="float32, bfloat16, float16 or auto.", rich_help_panel=_ENGINE),
    ] = "auto",
    pool_mib: Annotated[
        int, typer.Option(help="MiB of the K/V pool.", rich_help_panel=_ENGINE)
    ] = 1024,
    step_tokens: Annotated[
        int,
        typer.Option(
            help="Prompt tokens computed in one pass; on a GPU 8192 keeps long prompts fast.",
            rich_help_panel=_ENGINE,
        ),
    ] = 2048,
    donor_device_mib: Annotated[
        int,
        typer.Option(
            help="MiB of donor K/V on the device, beside the pool; 0: none.",
            rich_help_panel=_ENGINE,
        ),
    ] = 0,
    donor_mib: Annotated[
        int, typer.Option(help="MiB of donor K/V in host memory.", rich_help_panel=_ENGINE)
    ] = 1024,
    donor_disk_mib: Annotated[
        int, typer.Option(help="MiB of donor K/V on disk; 0: none.", rich_help_panel=_ENGINE)
    ] = 0,
    donor_folder: Annotated[
        Path | None,
        typer.Option(help="Where donor K/V on disk goes.", rich_help_panel=_ENGINE),
    ] = None,
    allow_uncertified: Annotated[
        bool | None,
        typer.Option(
            help="Reuse without a quality certificate, for experiments.", rich_help_panel=_ENGINE
        ),
    ] = None,
) -> None:
    """Serve a model; SEMBLEND_* variables set the rest (see `semblend settings`)."""
    overrides: dict[str, Any] = settings_given(context)
    if allow_uncertified is not None:
        overrides["allow_uncertified"] = allow_uncertified
    console = Console(stderr=True)
    try:
        settings = Settings.from_env(**overrides)
        options = ServeOptions(
            model_name=model_name or _name_of(model),
            host=host,
            port=port,
            key_file=key_file,
            trust_tenant_header=trust_tenant_header,
            allowed_hosts=tuple(allow_host) if allow_host else None,
            public_metrics=public_metrics,
            allow_policy_override=allow_policy_override,
            secret=settings.namespace_secret,
            max_concurrent=max_concurrent,
            max_queued=max_queued,
            max_concurrent_per_tenant=max_concurrent_per_tenant,
            requests_per_minute=requests_per_minute,
            max_body_bytes=max_body_bytes,
            max_prompt_tokens=max_prompt_tokens,
            max_output_tokens=max_output_tokens,
            default_temperature=_default_temperature(model),
            queue_timeout_s=queue_timeout,
            request_timeout_s=request_timeout,
            drain_timeout_s=drain_timeout,
            audit_path=audit_path,
        )
        engine_options = EngineOptions(
            device=device,
            dtype=dtype,
            pool_bytes=pool_mib * 2**20,
            step_tokens=step_tokens,
            device_donor_bytes=donor_device_mib * 2**20,
            host_donor_bytes=donor_mib * 2**20,
            disk_donor_bytes=donor_disk_mib * 2**20,
            donor_folder=donor_folder,
            max_running=max_concurrent,
        )
        _run(model, settings, options, engine_options, log_level, console)
    except SemBlendError as error:
        console.print(f"semblend serve: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error


def _run(
    model: str,
    settings: Settings,
    options: ServeOptions,
    engine_options: EngineOptions,
    log_level: LogLevel,
    console: Console,
) -> None:
    try:
        from semblend.engine.engine import EmbeddedEngine
        from semblend.integration.embedded.fleet import FleetMember
        from semblend.serve.app import create_app
        from semblend.serve.logs import configure
        from semblend.serve.ports import listen, take_port
        from semblend.serve.protocols import ServedEngine
        from semblend.serve.runner import make_server
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            package=error.name or "fastapi", extra="serve", purpose="semblend serve"
        ) from error
    configure(log_level.value)
    with ExitStack() as leaving:
        sockets = take_port(options.host, options.port)
        for each in sockets:
            leaving.callback(each.close)
        port = sockets[0].getsockname()[1]
        with console.status(escape(f"loading {model}")):
            engine = EmbeddedEngine.load(model, options=engine_options, settings=settings)
        leaving.callback(engine.close)
        served: ServedEngine = engine
        if settings.nats_url:
            member = FleetMember(engine, settings)
            leaving.callback(member.close)
            served = member
        server = make_server(create_app(served, options), options)
        address = f"[{options.host}]" if ":" in options.host else options.host
        console.print(
            f"{options.model_name} at http://{address}:{port}/ (page), "
            "/v1 (OpenAI's API), /metrics; stop with Ctrl-C",
            highlight=False,
            markup=False,
        )
        if not options.is_loopback and options.key_file is None:
            console.print(
                "open to other machines without API keys; --key-file asks for them",
                style="yellow",
            )
        # uvicorn drains on these signals and then raises them again: end well, so that the
        # engine is closed behind it.
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, _leave)
        listen(sockets, options.host)
        server.run(sockets=sockets)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _name_of(model: str) -> str:
    """A folder's name, or the hub name as it is."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


def _default_temperature(model: str) -> float:
    """What the model's own generation config asks for; 1, as OpenAI's, where it does not say."""
    try:
        config = parse_json((Path(model) / "generation_config.json").read_bytes())
    except (OSError, ValueError):
        return 1.0
    if not isinstance(config, dict):
        return 1.0
    if config.get("do_sample") is False:
        return 0.0
    temperature = config.get("temperature", 1.0)
    return float(temperature) if isinstance(temperature, (int, float)) else 1.0
