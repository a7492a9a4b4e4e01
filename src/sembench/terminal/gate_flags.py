"""Command-line flags for the gates, generated from the gate table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from sembench.gates.table import GATES, Gate, Threshold

FLAGGED = tuple(gate for gate in GATES if gate.has_flag)


def with_gates(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag per gate. Its first parameter receives the thresholds by gate."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in list(inspect.signature(command).parameters.values())[1:]
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        thresholds = {gate.name: _threshold(gate, given.pop(gate.name)) for gate in FLAGGED}
        command(thresholds, **given)

    # Order: required options, then gates, then options that concern all gates.
    needed = [each for each in own if each.default is inspect.Parameter.empty]
    optional = [each for each in own if each.default is not inspect.Parameter.empty]
    parameters = [*needed, *map(_flag, FLAGGED), *optional]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _flag(gate: Gate) -> inspect.Parameter:
    if gate.takes is None:
        option = typer.Option(f"--{gate.name.replace('_', '-')}", help=gate.help)
        annotation, default = Annotated[bool, option], False
    else:
        unasked = "" if gate.default is None else f" [{gate.default:g}]"
        annotation = Annotated[gate.takes | None, typer.Option(help=gate.help + unasked)]
        default = None
    return inspect.Parameter(
        gate.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _threshold(gate: Gate, given: Threshold | None) -> Threshold | None:
    if gate.takes is None:
        return gate.switch if given else None
    return given
