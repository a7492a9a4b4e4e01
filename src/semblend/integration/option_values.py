"""Options of adapters: checked with errors that name the key, and shown as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from rapidfuzz import process

from semblend.core.errors import SettingsError

Options = TypeVar("Options", bound=BaseModel)


def checked_options(kind: type[Options], values: Mapping[str, Any], *, source: str) -> Options:
    """Options from given keys.

    Parameters
    ----------
    source
        Where the keys were given, for messages.

    Raises
    ------
    SettingsError
        Naming the key and what would be right.
    """
    known = list(kind.model_fields)
    for name in values:
        if name not in kind.model_fields:
            match = process.extractOne(name, known, score_cutoff=60)
            hint = f"did you mean {match[0]}?" if match else f"known: {', '.join(known)}"
            raise SettingsError(f"{source}: unknown key {name!r}; {hint}")
    try:
        return kind(**values)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc']))} = {item['input']!r}: {item['msg']}"
            for item in error.errors()
        )
        raise SettingsError(f"{source}: {wrong}") from error


def options_table(kind: type[BaseModel]) -> str:
    """Every key, its default and what it does, as a Markdown table."""
    lines = ["| Key | Default | What it does |", "| --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        value = field.default
        shown = "not set" if value is None else f"`{getattr(value, 'value', value)}`"
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines)
