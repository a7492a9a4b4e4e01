"""What launchers share: flags that start with --semblend are ours, all others the server's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import SemBlendError
from semblend.integration.option_values import given_object
from semblend.integration.options import VariableOptions


def flags_of(
    options: type[VariableOptions], program: str, *, server: str, help_of: str, page: str
) -> argparse.ArgumentParser:
    """The flags every launcher takes.

    Parameters
    ----------
    server
        What is started, for people.
    help_of
        The command that lists the server's own flags.
    page
        The page that documents the options.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"Start {server} with SemBlend. All other flags go to {server}.",
        epilog=f"For the server's own flags: {help_of}",
        allow_abbrev=False,
    )
    modes = [mode.value for mode in options.MODES]
    parser.add_argument("--semblend-mode", choices=modes, help="what may be loaded")
    parser.add_argument("--semblend-config", help=f"a JSON object, or a file with one; see {page}")
    parser.add_argument("--semblend-audit-path", help="append the audit stream to this file")
    return parser


def values_of(
    options: type[VariableOptions], ours: argparse.Namespace, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The checked options from flags and environment; a flag overrides.

    Raises
    ------
    SettingsError
        Naming the flag or key and what it expects.
    """
    values = (
        given_object(ours.semblend_config, source="--semblend-config")
        if ours.semblend_config
        else options.from_env(environ).given()
    )
    for flag, given in vars(ours).items():
        name = flag.removeprefix("semblend_")
        if name != "config" and given is not None:
            values[name] = given
    options.from_mapping(values)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFlag:
    """A flag among a server's own arguments: `--flag value` or `--flag=value`."""

    name: str
    value: str | None
    """None where nothing follows the flag."""
    before: tuple[str, ...]
    behind: tuple[str, ...]


def given_flag(argv: list[str], names: Collection[str]) -> GivenFlag | None:
    """The first of these flags that was given."""
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in names:
            # Without an equals sign the next argument is the value.
            end = index + (1 if equals else 2)
            return GivenFlag(
                name=name,
                value=value if equals else next(iter(argv[index + 1 : end]), None),
                before=tuple(argv[:index]),
                behind=tuple(argv[end:]),
            )
    return None


@contextmanager
def stopping(program: str) -> Iterator[None]:
    """End the command with one line instead of a traceback on an error of ours."""
    try:
        yield
    except SemBlendError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(2) from error
