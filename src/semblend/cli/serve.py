"""`semblend serve`: the embedded engine with an OpenAI-compatible API and a status page."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from semblend.core.errors import MissingExtraError, SemBlendError
from semblend.core.json_text import parse_json
from semblend.core.settings import EmbedderKind, Settings, variable
from semblend.core.unheeded import unheeded
from semblend.engine.options import EngineOptions
from semblend.serve.config_file import read_config, settings_given
from semblend.serve.options import ServeOptions
from semblend.terminal.field_flags import values_of, with_flags


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@with_flags(ServeOptions, EngineOptions)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model folder or Hugging Face hub name.")],
    model_name: Annotated[
        str, typer.Option(help="Name clients use in 'model'; default: the folder or hub name.")
    ] = "",
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level to log.")] = LogLevel.INFO,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML or TOML file with these flags and settings; flags win.",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    allow_uncertified: Annotated[
        bool | None,
        typer.Option(
            help="Reuse without a quality certificate, for experiments.", rich_help_panel="Engine"
        ),
    ] = None,
    **given: Any,
) -> None:
    """Serve a model. SEMBLEND_* variables set the rest (see `semblend settings`)."""
    overrides: dict[str, Any] = settings_given(context)
    if allow_uncertified is not None:
        overrides["allow_uncertified"] = allow_uncertified
    console = Console(stderr=True)
    try:
        settings = _settings(overrides, console)
        options = ServeOptions(
            **values_of(ServeOptions, given),
            model_name=model_name or _name_of(model),
            secret=settings.namespace_secret,
            default_temperature=_default_temperature(model),
        )
        engine_options = EngineOptions(
            **values_of(EngineOptions, given), max_running=options.max_concurrent
        )
        _run(model, settings, options, engine_options, log_level, console)
    except SemBlendError as error:
        console.print(f"semblend serve: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error


def _settings(given: dict[str, Any], console: Console) -> Settings:
    """Read settings from variables and flags, and warn about those the server ignores."""
    settings = Settings.from_env(**given)
    stated = {variable(name): str(value) for name, value in given.items()}
    if said := unheeded({**os.environ, **stated}, here="semblend serve"):
        console.print(said, style="yellow", highlight=False, markup=False)
    return settings.model_copy(update={"embedder": EmbedderKind.NONE, "fuzzy_chunks": False})


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
        from semblend.serve.ports import listen, take_port
        from semblend.serve.protocols import ServedEngine
        from semblend.serve.runner import make_server
        from semblend.serve.watch.json_logs import configure
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
                "open to other machines without API keys; require them with --key-file",
                style="yellow",
            )
        # uvicorn drains on these signals and then raises them again. Exit normally, so that the
        # engine is closed afterwards.
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, _leave)
        listen(sockets, options.host)
        server.run(sockets=sockets)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _name_of(model: str) -> str:
    """A folder's name, or the hub name unchanged."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


def _default_temperature(model: str) -> float:
    """The temperature of the model's generation config, else 1 as in OpenAI's API."""
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
