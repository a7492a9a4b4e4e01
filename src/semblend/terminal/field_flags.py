"""Command-line flags made from fields annotated with `Flag`, the same in every command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from semblend.core.errors import SettingsError
from semblend.core.flags import Flag


def with_flags(*options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of some options classes. Its ``**given`` receives their values."""
    shared = [parameter for each in options for parameter in _parameters(each)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**given)

        parameters = [*own, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def values_of(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Field values of an options class, as given by its flags."""
    values: dict[str, Any] = {}
    for field, flag, name, _ in _flagged(options):
        value = given[name]
        if isinstance(value, list):
            value = tuple(value) or None
        elif flag.unit != 1:
            value = type(_default(options, field))(value * flag.unit)
        values[field] = value
    return values


def _parameters(options: type) -> Iterator[inspect.Parameter]:
    for field, flag, name, kind in _flagged(options):
        default = _default(options, field)
        if flag.unit != 1:
            # Show round numbers: 28, not 28.000000000000004.
            default = type(default)(round(default / flag.unit, 9))
        option = typer.Option(help=flag.help, rich_help_panel=flag.panel)
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[_as_typer_takes(kind), option],
        )


def _flagged(options: type) -> Iterator[tuple[str, Flag, str, Any]]:
    """Field, flag, flag name and field type, in field order."""
    for field, hint in get_type_hints(options, include_extras=True).items():
        kind, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        for flag in notes:
            if isinstance(flag, Flag):
                yield field, flag, flag.name or field, kind


def _default(options: type, field: str) -> Any:
    default = next(each.default for each in fields(options) if each.name == field)
    if default is MISSING:
        raise SettingsError(f"{options.__name__}.{field}: a flag needs a default")
    return default


def _as_typer_takes(kind: Any) -> Any:
    """Typer takes repeated flags as lists."""
    return list[str] | None if kind == tuple[str, ...] | None else kind
