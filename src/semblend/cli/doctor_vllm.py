"""`semblend doctor vllm`: what SemBlend would do in the installed vLLM, and why."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from semblend.core.errors import SettingsError
from semblend.integration.option_values import given_object
from semblend.integration.vllm.diagnosis import SetupQuestion, diagnose
from semblend.integration.vllm.support import WORKER_CLASS
from semblend.terminal.doctor_output import show

_TRANSFER = {
    "kv_connector": "SemBlendConnectorV1",
    "kv_connector_module_path": "semblend.integration.vllm.connector_v1",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def doctor_vllm(
    model: Annotated[
        str | None,
        typer.Argument(help="Model folder or hub name; without it, only vLLM is checked."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="The connector's mode, unless a configuration is given.")
    ] = "segmented",
    kv_transfer_config: Annotated[
        str | None, typer.Option(help="vLLM's own option: JSON, or a file with it.")
    ] = None,
    worker_cls: Annotated[str, typer.Option(help="vLLM's --worker-cls.")] = WORKER_CLASS,
    tensor_parallel_size: Annotated[int, typer.Option(help="vLLM's own option.")] = 1,
    dtype: Annotated[str, typer.Option(help="vLLM's own option.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="vLLM's own option.")] = None,
    kv_offloading_size: Annotated[float | None, typer.Option(help="vLLM's own option.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a vLLM installation. Exits with 1 if SemBlend would refuse anything."""
    # vLLM reads these on import. Its log must not mix with our output.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    transfer = (
        {**_TRANSFER, "kv_connector_extra_config": {"mode": mode}}
        if kv_transfer_config is None
        else _read(kv_transfer_config)
    )
    findings = diagnose(
        SetupQuestion(
            model=model,
            transfer_config=transfer,
            worker_cls=worker_cls,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            max_model_len=max_model_len,
            kv_offloading_size=kv_offloading_size,
        )
    )
    show("vllm", findings, as_json=as_json)


def _read(given: str) -> dict[str, Any]:
    try:
        return given_object(given, source="--kv-transfer-config")
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
