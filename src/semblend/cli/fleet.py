"""`semblend fleet`: who is in the fleet and what the log says they hold."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from semblend.core.errors import SemBlendError, SettingsError
from semblend.core.settings import Settings
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.publish.nats_link import LogOptions


def fleet(
    seconds: Annotated[
        float, typer.Option(help="How long to listen for heartbeats after reading the log.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Read the log at SEMBLEND_NATS_URL and list the workers, their donors and their standing."""
    console = Console()
    try:
        settings = Settings.from_env()
        if not settings.nats_url:
            raise SettingsError("SEMBLEND_NATS_URL: the address of the fleet's log is needed")
        directory = Directory()
        log = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
        follower = LogFollower(directory, log)
        try:
            _listen(follower, seconds)
        finally:
            follower.close()
    except SemBlendError as error:
        Console(stderr=True).print(f"semblend fleet: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    donors = directory.donor_keys()
    rows = [
        {
            "worker": rank.name[0],
            "rank": rank.name[1],
            "standing": rank.standing.value,
            "donors": len(donors.get(rank.name, ())),
            "last_event_id": rank.last_event_id,
            "in_doubt": rank.in_doubt,
            "model": str(rank.namespace.get("model", "")),
        }
        for rank in directory.ranks
    ]
    if as_json:
        typer.echo(json.dumps({"ranks": rows, "events": directory.events}))
        return
    table = Table("worker", "rank", "standing", "donors", "last event", "in doubt", "model")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)
    console.print(f"{directory.events} events read", highlight=False)


def _listen(follower: LogFollower, seconds: float) -> None:
    deadline = time.monotonic() + 30.0
    while not follower.caught_up:
        if time.monotonic() > deadline:
            raise SettingsError("SEMBLEND_NATS_URL: nobody answers there")
        time.sleep(0.05)
    time.sleep(seconds)
