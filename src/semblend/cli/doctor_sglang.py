"""`semblend doctor sglang`: what SemBlend would do in the installed SGLang, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from semblend.integration.sglang.diagnosis import SetupQuestion, diagnose
from semblend.integration.sglang.options import BackendOptions
from semblend.terminal.doctor_output import keys_of, show


def doctor_sglang(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="SGLang's own flags, after --; without them, only the installation is checked."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="The backend's mode; default: the variable's, or segmented."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="JSON object, as in SEMBLEND_SGLANG_CONFIG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check an SGLang installation. Exits with 1 if SemBlend would refuse anything."""
    values = keys_of(BackendOptions.from_env, config=config, mode=mode)
    findings = diagnose(SetupQuestion(config=values, arguments=tuple(arguments or ())))
    show("sglang", findings, as_json=as_json)
