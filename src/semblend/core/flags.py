"""A field of an options class that is also a flag of a command: stated where the field is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Stands in a field's annotation: ``port: Annotated[int, Flag(help="…")] = 8000``.

    Name, type and default of the flag are the field's, unless it says otherwise.
    """

    help: str
    name: str = ""
    """Another name than the field's."""
    unit: float = 1
    """What one of the flag is in the field: 2**20 for a flag in MiB over a field in bytes."""
    panel: str | None = None
    """The heading it is listed under."""
