"""Marks a field of an options class as a command-line flag."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Goes into a field's annotation: ``port: Annotated[int, Flag(help="…")] = 8000``.

    The flag takes its name, type and default from the field unless stated otherwise.
    """

    help: str
    name: str = ""
    """Overrides the field's name."""
    unit: float = 1
    """Size of the flag's unit in the field's unit: 2**20 for MiB over a field in bytes."""
    panel: str | None = None
    """Heading in `--help`."""
