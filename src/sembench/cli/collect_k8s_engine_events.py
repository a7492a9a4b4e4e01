"""``sembench collect-k8s-engine-events``: fetch a pod's log and summarize it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.cli.summarize_engine_events import Engine, summarise_file, write_summary
from sembench.k8s import PodLog, collect


def collect_k8s_engine_events(
    engine: Engine,
    namespace: Annotated[str, typer.Option(help="Namespace of the pod.")],
    pod: Annotated[str, typer.Option(help="Pod whose log to read.")],
    output_log: Annotated[Path, typer.Option(help="Save the raw log here.")],
    output_summary: Annotated[Path, typer.Option(help="Write the summary here.")],
    container: Annotated[
        str | None, typer.Option(help="Container name, if the pod has several.")
    ] = None,
    tail: Annotated[
        int, typer.Option(min=1, help="Last lines to read if no time is given.")
    ] = 2000,
    since: Annotated[str | None, typer.Option(help="How far back to read, such as 15m.")] = None,
    since_time: Annotated[str | None, typer.Option(help="Read from this RFC 3339 time on.")] = None,
) -> None:
    """Fetch a pod's log with kubectl, save it and summarize it."""
    collect(
        PodLog(
            namespace=namespace,
            pod=pod,
            container=container,
            tail=tail,
            since=since,
            since_time=since_time,
        ),
        output_log,
    )
    write_summary(summarise_file(engine, output_log), output_summary)
