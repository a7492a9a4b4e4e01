"""`semblend doctor trtllm`: what the TensorRT-LLM installed here would do with SemBlend."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.core.errors import SettingsError
from semblend.integration.findings import Finding, Verdict
from semblend.integration.trtllm.diagnosis import Question, diagnose
from semblend.integration.trtllm.options import ConnectorOptions

_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.NOTE: "[yellow]note[/]",
    Verdict.REFUSED: "[red]refused[/]",
}


def doctor_trtllm(
    model: Annotated[
        str | None,
        typer.Argument(help="A model folder or hub name; without one, only the installation."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="The connector's mode; by default the variable's, or segmented."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The JSON object you would give SEMBLEND_TRTLLM_CONFIG.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="TensorRT-LLM's own option.")] = "auto",
    kv_cache_dtype: Annotated[str, typer.Option(help="kv_cache_config.dtype.")] = "auto",
    tensor_parallel_size: Annotated[int, typer.Option(help="TensorRT-LLM's own option.")] = 1,
    tokens_per_block: Annotated[int, typer.Option(help="kv_cache_config.tokens_per_block.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge an installation of TensorRT-LLM; exits with 1 if anything would be refused."""
    try:
        values = (
            ConnectorOptions.from_env().model_dump(mode="json", exclude_unset=True)
            if config is None
            else json.loads(config)
        )
    except (SettingsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(values, dict):
        raise typer.BadParameter("--config: a JSON object expected")
    if mode is not None:
        values["mode"] = mode
    findings = diagnose(
        Question(
            config=values,
            model=model,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor_parallel_size,
            tokens_per_block=tokens_per_block,
        )
    )
    console = Console()
    if as_json:
        body = {
            "engine": "trtllm",
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
    table = Table("check", "", "detail", title="semblend doctor trtllm")
    for finding in findings:
        # Escaped: "semblend[trtllm]" is an extra, not markup.
        table.add_row(finding.check, _MARKS[finding.verdict], escape(finding.detail))
    return table
