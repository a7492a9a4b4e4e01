"""``sembench collect-k8s-engine-events``: fetch a pod's log and summarise it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.cli.summarize_engine_events import Engine, summarise_file, write_summary
from sembench.k8s import PodLog, collect


def collect_k8s_engine_events(
    engine: Engine,
    namespace: Annotated[str, typer.Option(help="Namespace of the pod.")],
    pod: Annotated[str, typer.Option(help="Pod whose log is read.")],
    output_log: Annotated[Path, typer.Option(help="File for the log itself.")],
    output_summary: Annotated[Path, typer.Option(help="File for the summary.")],
    container: Annotated[
        str | None, typer.Option(help="Container, where there are several.")
    ] = None,
    tail: Annotated[int, typer.Option(min=1, help="Last lines, where no time is given.")] = 2000,
    since: Annotated[str | None, typer.Option(help="A duration, such as 15m.")] = None,
    since_time: Annotated[str | None, typer.Option(help="An RFC 3339 time.")] = None,
) -> None:
    """Read a pod's log with kubectl, keep it, and summarise it."""
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
