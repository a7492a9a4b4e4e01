"""`semblend doctor sglang`: what the SGLang installed here would do with SemBlend, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from semblend.cli.doctor_parts import keys_of, show
from semblend.integration.sglang.diagnosis import Question, diagnose
from semblend.integration.sglang.options import BackendOptions


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
    values = keys_of(BackendOptions.from_env, config=config, mode=mode)
    findings = diagnose(Question(config=values, arguments=tuple(arguments or ())))
    show("sglang", findings, as_json=as_json)
