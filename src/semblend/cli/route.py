"""`semblend route`: a gateway that sends each request to the worker that can start it first."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from semblend.cli.serve import LogLevel
from semblend.core.errors import MissingExtraError, SemBlendError, SettingsError
from semblend.core.settings import Settings
from semblend.fleet.placement.expected_time import FleetCost
from semblend.integration.dynamo.pinning import PIN_HEADER
from semblend.serve.gateway.options import GatewayOptions, parse_feed, parse_worker
from semblend.terminal.field_flags import values_of, with_flags


@with_flags(GatewayOptions, FleetCost)
def route(
    tokenizer: Annotated[
        str, typer.Argument(help="Model of the workers: a folder or hub name with the tokenizer.")
    ],
    worker: Annotated[
        list[str],
        typer.Option(
            help="Worker as id=http://host:port; id is its SEMBLEND_WORKER_ID; repeatable."
        ),
    ],
    dynamo: Annotated[
        bool,
        typer.Option(
            help="URLs are Dynamo's frontend, ids its instance ids; pin requests by header."
        ),
    ] = False,
    kv_events: Annotated[
        list[str] | None,
        typer.Option(
            help="Where a worker's engine (vLLM, SGLang) publishes K/V events: "
            "id=tcp://host:port,tcp://host:replay-port."
        ),
    ] = None,
    exact_only: Annotated[
        bool, typer.Option(help="Workers load no donors; place by exact prefix only.")
    ] = False,
    max_donor_mib: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Size of the donor directory in MiB.")
    ] = 512,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="File to load the directory from, and to save it to on exit."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level to log.")] = LogLevel.INFO,
    **given: Any,
) -> None:
    """Route requests over a fleet. SEMBLEND_* variables set the rest (see `semblend settings`)."""
    console = Console(stderr=True)
    try:
        settings = Settings.from_env()
        options = GatewayOptions(
            **values_of(GatewayOptions, given),
            workers=tuple(parse_worker(text) for text in worker),
            feeds=tuple(parse_feed(text) for text in kv_events or ()),
            can_reuse=not exact_only,
            can_transfer=bool(settings.transport),
            pin_header=PIN_HEADER if dynamo else "",
            cost=FleetCost(
                **values_of(FleetCost, given), transfer_bytes_per_s=settings.transport_bytes_per_s
            ),
        )
        _run(
            settings,
            options,
            tokenizer=tokenizer,
            max_bytes=max_donor_mib * 2**20,
            snapshot=snapshot,
            log_level=log_level.value,
            console=console,
        )
    except SemBlendError as error:
        console.print(f"semblend route: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error


def _run(
    settings: Settings,
    options: GatewayOptions,
    *,
    tokenizer: str,
    max_bytes: int,
    snapshot: Path | None,
    log_level: str,
    console: Console,
) -> None:
    try:
        import uvicorn
        from transformers import AutoTokenizer

        from semblend.fleet.directory.directory import DEFAULT_POSTINGS_PER_DONOR, Directory
        from semblend.fleet.directory.index import SketchIndex
        from semblend.fleet.directory.log_follower import LogFollower
        from semblend.fleet.keys import fleet_secret
        from semblend.fleet.publish.nats_link import LogOptions
        from semblend.fleet.residency.caches import FollowedCaches
        from semblend.serve.gateway.app import create_gateway
        from semblend.serve.ports import listen, take_port
        from semblend.serve.watch.json_logs import configure
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            package=error.name or "fastapi", extra="serve,fleet", purpose="semblend route"
        ) from error
    if not settings.nats_url:
        raise SettingsError("SEMBLEND_NATS_URL: set it to the address of the fleet's log")
    configure(log_level)
    with ExitStack() as leaving:
        sockets = take_port(options.host, options.port)
        for each in sockets:
            leaving.callback(each.close)
        directory = Directory(
            SketchIndex.within(max_bytes, postings_per_donor=DEFAULT_POSTINGS_PER_DONOR)
        )
        position = _restored(directory, snapshot, console)
        log = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
        try:
            spoken = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            raise SettingsError(f"TOKENIZER {tokenizer!r}: cannot be read ({error})") from error
        secret = fleet_secret(settings.namespace_secret)
        caches = FollowedCaches(directory, options.feeds, secret=secret)
        leaving.callback(caches.close)
        app = create_gateway(directory, spoken, options, settings, caches=caches)
        follower = LogFollower(directory, log, apply=caches.donors.apply, position=position)
        if snapshot is not None:
            leaving.callback(lambda: directory.save(snapshot, position=follower.position))
        leaving.callback(follower.close)
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, _leave)
        port = sockets[0].getsockname()[1]
        console.print(
            f"gateway of {len(options.workers)} workers at http://{options.host}:{port}/v1",
            highlight=False,
        )
        listen(sockets, options.host)
        uvicorn.Server(
            uvicorn.Config(
                app,
                host=options.host,
                port=options.port,
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=64 * 1024,
            )
        ).run(sockets=sockets)


def _restored(directory: Any, path: Path | None, console: Console) -> int:
    """Where to start reading the log. An unusable snapshot only costs a full replay."""
    if path is None or not path.exists():
        return 0
    try:
        position: int = directory.load(path)
    except SemBlendError as error:
        console.print(f"snapshot not used: {error}", style="yellow", markup=False)
        return 0
    return position


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
