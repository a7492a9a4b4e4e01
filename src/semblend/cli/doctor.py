"""`semblend doctor ENGINE`: what this installation would do with SemBlend, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semblend.cli.doctor_sglang import doctor_sglang
from semblend.cli.doctor_trtllm import doctor_trtllm
from semblend.core.json_text import parse_json
from semblend.integration.findings import Finding, Verdict
from semblend.integration.vllm.diagnosis import Question, diagnose, findings_json

doctor = typer.Typer(
    help="Say what an engine installed here would do with SemBlend, and why.",
    no_args_is_help=True,
)

_WORKER = "semblend.integration.vllm.worker.SemBlendWorker"
_TRANSFER = {
    "kv_connector": "SemBlendConnectorV1",
    "kv_connector_module_path": "semblend.integration.vllm.connector_v1",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.NOTE: "[yellow]note[/]",
    Verdict.REFUSED: "[red]refused[/]",
}


@doctor.callback()
def main() -> None:
    """Say what an engine installed here would do with SemBlend, and why."""


doctor.command("sglang")(doctor_sglang)
doctor.command("trtllm")(doctor_trtllm)


@doctor.command("vllm")
def doctor_vllm(
    model: Annotated[
        str | None, typer.Argument(help="A model folder or hub name; without one, only vLLM.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="The connector's mode, if no configuration is given.")
    ] = "segmented_experimental",
    kv_transfer_config: Annotated[
        str | None, typer.Option(help="The JSON you would give vLLM, or a file that holds it.")
    ] = None,
    worker_cls: Annotated[str, typer.Option(help="vLLM's --worker-cls.")] = _WORKER,
    tensor_parallel_size: Annotated[int, typer.Option(help="vLLM's own option.")] = 1,
    dtype: Annotated[str, typer.Option(help="vLLM's own option.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="vLLM's own option.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge an installation of vLLM; exits with 1 if anything would be refused."""
    # vLLM reads these when it is imported; its log must not get into our answer.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    transfer = (
        {**_TRANSFER, "kv_connector_extra_config": {"mode": mode}}
        if kv_transfer_config is None
        else _read(kv_transfer_config)
    )
    findings = diagnose(
        Question(
            model=model,
            transfer_config=transfer,
            worker_cls=worker_cls,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            max_model_len=max_model_len,
        )
    )
    console = Console()
    if as_json:
        console.print(findings_json(findings), soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(_table(findings))
    if any(finding.verdict is Verdict.REFUSED for finding in findings):
        raise typer.Exit(1)


def _read(given: str) -> dict[str, Any]:
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
        value = parse_json(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--kv-transfer-config: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("--kv-transfer-config: a JSON object expected")
    return value


def _table(findings: list[Finding]) -> Table:
    table = Table("check", "", "detail", title="semblend doctor vllm")
    for finding in findings:
        # Escaped: "semblend[vllm]" is an extra, not markup.
        table.add_row(finding.check, _MARKS[finding.verdict], escape(finding.detail))
    return table
