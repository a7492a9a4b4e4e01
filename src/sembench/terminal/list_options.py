"""Options that take several values after one flag: ``--datasets a b c``.

Click repeats the flag instead (``--datasets a --datasets b``). Both work here: the
values after a repeatable option are passed to click as repeated flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption


def spread_list_options(arguments: Sequence[str], repeatable: frozenset[str]) -> list[str]:
    """Rewrite ``--flag a b`` as ``--flag a --flag b`` for the flags in `repeatable`.

    >>> spread_list_options(["--datasets", "a", "b", "--seed", "1"], frozenset({"--datasets"}))
    ['--datasets', 'a', '--datasets', 'b', '--seed', '1']
    """
    spread: list[str] = []
    flag: str | None = None
    taken = 0
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*spread, *arguments[position:]]
        if argument.startswith("-") and len(argument) > 1:
            flag = argument if argument in repeatable else None
            taken = 0
            spread.append(argument)
            continue
        if flag is not None and taken:
            spread.append(flag)
        taken += 1
        spread.append(argument)
    return spread


class ListOptionsCommand(TyperCommand):
    """A command whose repeatable options also take several values after one flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = frozenset(
            name
            for parameter in self.params
            if isinstance(parameter, TyperOption) and parameter.multiple
            for name in parameter.opts
        )
        return super().parse_args(ctx, spread_list_options(args, repeatable))
