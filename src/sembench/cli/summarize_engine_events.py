"""``sembench summarize-engine-events``: what an engine's own log or audit says it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sembench.engine_events import EngineSummary, summarise
from sembench.errors import UsageError
from sembench.manifests.files import open_text

Engine = Annotated[
    str, typer.Option("--engine", help="vllm, sglang, trtllm, lmcache or connector (audit JSONL).")
]


def summarize_engine_events(
    engine: Engine,
    input: Annotated[Path, typer.Option("--input", help="Log or audit file to read.")],  # noqa: A002
    output: Annotated[Path, typer.Option("--output", help="Summary file to write.")],
) -> None:
    """Count registrations, hits, materializations and errors in a log."""
    write_summary(summarise_file(engine, input), output)


def summarise_file(engine: str, path: Path) -> EngineSummary:
    try:
        with open_text(path) as stream:
            return summarise(engine, stream)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--input: {path} cannot be read ({error})") from error


def write_summary(summary: EngineSummary, output: Path) -> None:
    """Write a summary and print it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False)
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(
        f"{summary.engine}: {summary.semantic_hits} hits, {summary.materialization_events} "
        f"materializations, {summary.materialized_tokens} tokens, {summary.error_count} errors"
    )
    typer.echo(f"summary: {output}")
