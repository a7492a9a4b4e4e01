"""`semblend doctor trtllm`: what the TensorRT-LLM installed here would do with SemBlend."""

from __future__ import annotations

from typing import Annotated

import typer

from semblend.cli.doctor_parts import keys_of, show
from semblend.integration.trtllm.diagnosis import Question, diagnose
from semblend.integration.trtllm.options import ConnectorOptions


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
    values = keys_of(ConnectorOptions.from_env, config=config, mode=mode)
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
    show("trtllm", findings, as_json=as_json)
