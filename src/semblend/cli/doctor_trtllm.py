"""`semblend doctor trtllm`: what SemBlend would do in the installed TensorRT-LLM."""

from __future__ import annotations

from typing import Annotated

import typer

from semblend.integration.trtllm.diagnosis import SetupQuestion, diagnose
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.terminal.doctor_output import keys_of, show


def doctor_trtllm(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model folder or hub name; without it, only the installation is checked."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="The connector's mode; default: the variable's, or segmented."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="JSON object, as in SEMBLEND_TRTLLM_CONFIG.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="TensorRT-LLM's own option.")] = "auto",
    kv_cache_dtype: Annotated[str, typer.Option(help="kv_cache_config.dtype.")] = "auto",
    tensor_parallel_size: Annotated[int, typer.Option(help="TensorRT-LLM's own option.")] = 1,
    tokens_per_block: Annotated[int, typer.Option(help="kv_cache_config.tokens_per_block.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a TensorRT-LLM installation. Exits with 1 if SemBlend would refuse anything."""
    values = keys_of(ConnectorOptions.from_env, config=config, mode=mode)
    findings = diagnose(
        SetupQuestion(
            config=values,
            model=model,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor_parallel_size,
            tokens_per_block=tokens_per_block,
        )
    )
    show("trtllm", findings, as_json=as_json)
