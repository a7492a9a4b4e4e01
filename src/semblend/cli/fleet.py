"""`semblend fleet`: list the workers of a fleet and what the log says they hold."""

from __future__ import annotations

import json
import socket
import time
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.markup import escape

from semblend.core.errors import SettingsError
from semblend.core.settings import Settings
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.publish.nats_link import LogOptions
from semblend.terminal.tables import output, table

ANSWER_S = 2.0
"""Seconds until the user is told that nothing answers."""
NATS_PORT = 4222


def fleet(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds to listen for heartbeats after reading the log.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read the log at SEMBLEND_NATS_URL and list the workers, their donors and their state."""
    console = output()
    settings = Settings.from_env()
    if not settings.nats_url:
        raise SettingsError("SEMBLEND_NATS_URL: set it to the address of the fleet's log")
    directory = Directory()
    log = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
    require_answer(log.url)
    follower = LogFollower(directory, log)
    try:
        _listen(follower, seconds)
    finally:
        follower.close()
    donors = directory.donor_keys()
    rows = [
        {
            "worker": rank.name[0],
            "rank": rank.name[1],
            "standing": rank.liveness.value,
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
    made = table("worker", "rank", "standing", "donors", "last event", "in doubt", "model")
    for row in rows:
        made.add_row(*(escape(str(value)) for value in row.values()))
    console.print(made)
    console.print(f"{directory.events} events read", highlight=False)


def require_answer(url: str) -> None:
    """Check that one of the addresses is a NATS server. NATS speaks first.

    Raises
    ------
    SettingsError
        Within two seconds, if none is.
    """
    addresses = [urlsplit(each if "//" in each else f"nats://{each}") for each in url.split(",")]
    patience = ANSWER_S / len(addresses)
    said = []
    for address in addresses:
        place = (address.hostname or "127.0.0.1", address.port or NATS_PORT)
        try:
            with socket.create_connection(place, timeout=patience / 2) as server:
                if server.recv(4) == b"INFO":
                    return
            said.append(f"{place[0]}:{place[1]} is not a NATS server")
        except OSError as error:
            said.append(f"{place[0]}:{place[1]}: {error.strerror or error}")
    raise SettingsError(f"SEMBLEND_NATS_URL: nothing answers there ({'; '.join(said)})")


def _listen(follower: LogFollower, seconds: float) -> None:
    deadline = time.monotonic() + 30.0
    while not follower.caught_up:
        if time.monotonic() > deadline:
            raise SettingsError("SEMBLEND_NATS_URL: NATS answers but JetStream does not")
        time.sleep(0.05)
    time.sleep(seconds)
