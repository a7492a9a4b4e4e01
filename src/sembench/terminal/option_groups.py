"""Options that several commands take together, written once.

A group is a frozen dataclass whose fields are annotated options. ``@takes(Group)``
turns ``def command(flags: Group, own: Option = 1)`` into a command with both sets of
options, so that a flag has one name, one default and one help text everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Group = TypeVar("Group")


def takes(group: type[Group]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `group`, which its first parameter receives."""
    hints = get_type_hints(group, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)  # type: ignore[arg-type]
    ]
    names = [parameter.name for parameter in shared]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(
                kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[parameter.name]
            )
            for parameter in list(inspect.signature(command).parameters.values())[1:]
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            flags = group(**{name: given.pop(name) for name in names})
            command(flags, **given)

        parameters = sorted([*shared, *own], key=_is_optional)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _is_optional(parameter: inspect.Parameter) -> bool:
    """Sort key that lists required options first in the help."""
    return parameter.default is not inspect.Parameter.empty
