"""`semblend doctor sglang`: what the SGLang installed here would do with SemBlend, and why."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.integration.findings import Finding, Verdict
from semblend.integration.sglang.diagnosis import Question, diagnose
from semblend.integration.sglang.options import BackendOptions

_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.NOTE: "[yellow]note[/]",
    Verdict.REFUSED: "[red]refused[/]",
}


def doctor_sglang(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="SGLang's own flags, behind --; without any, only the installation."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="The backend's mode; by default the variable's, or segmented."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The JSON object you would give SEMBLEND_SGLANG_CONFIG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge an installation of SGLang; exits with 1 if anything would be refused."""
    try:
        values = (
            BackendOptions.from_env().model_dump(mode="json", exclude_unset=True)
            if config is None
            else parse_json(config)
        )
    except (SettingsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(values, dict):
        raise typer.BadParameter("--config: a JSON object expected")
    if mode is not None:
        values["mode"] = mode
    findings = diagnose(Question(config=values, arguments=tuple(arguments or ())))
    console = Console()
    if as_json:
        body = {
            "engine": "sglang",
            "findings": [
                {"check": f.check, "verdict": f.verdict.value, "detail": f.detail} for f in findings
            ],
        }
        console.print(json.dumps(body), soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(_table(findings))
    if any(finding.verdict is Verdict.REFUSED for finding in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table("check", "", "detail", title="semblend doctor sglang")
    for finding in findings:
        # Escaped: "semblend[vllm]" is an extra, not markup.
        table.add_row(finding.check, _MARKS[finding.verdict], escape(finding.detail))
    return table
