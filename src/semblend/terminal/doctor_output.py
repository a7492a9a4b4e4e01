"""Shared by all `semblend doctor` commands: read the configuration, show the findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.integration.findings import Finding, Verdict, any_refused, findings_json
from semblend.integration.option_values import given_object
from semblend.integration.options import AdapterOptions
from semblend.terminal.tables import output, table

_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.NOTE: "[yellow]note[/]",
    Verdict.REFUSED: "[red]refused[/]",
}


def keys_of(
    from_env: Callable[[], AdapterOptions], *, config: str | None, mode: str | None
) -> dict[str, Any]:
    """The adapter's configuration: `config`, or the environment's, overridden by `mode`."""
    try:
        given = from_env().given() if config is None else given_object(config, source="--config")
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    return given if mode is None else {**given, "mode": mode}


def show(engine: str, findings: list[Finding], *, as_json: bool) -> None:
    """Print all findings. Exits with 1 if any is a refusal."""
    console = output()
    if as_json:
        body = findings_json(engine, findings)
        console.print(body, soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(_table(engine, findings))
    if any_refused(findings):
        raise typer.Exit(1)


def _table(engine: str, findings: list[Finding]) -> Table:
    made = table("check", "", "detail", title=f"semblend doctor {engine}")
    for finding in findings:
        # Escape: "[vllm]" is an extra, not markup.
        made.add_row(finding.check, _MARKS[finding.verdict], escape(finding.detail))
    return made
