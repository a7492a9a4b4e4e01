"""Reads and checks adapter options, with errors that name the key, and lists them as a table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from semblend.core.errors import MissingExtraError, SettingsError
from semblend.core.json_text import parse_json
from semblend.core.settings import explain, nearest

Options = TypeVar("Options", bound=BaseModel)


def checked_options(kind: type[Options], values: Mapping[str, Any], *, source: str) -> Options:
    """Build options from the given keys.

    Parameters
    ----------
    source
        Where the keys were given, for error messages.

    Raises
    ------
    SettingsError
        Naming the key and what it expects.
    """
    for name in values:
        if name not in kind.model_fields:
            raise SettingsError(f"{source}: unknown key {name!r}{nearest(name, kind.model_fields)}")
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError(f"{source}: {explain(error)}") from error


def given_object(given: str, *, source: str) -> dict[str, Any]:
    """Parse a JSON object, or the file of that name.

    Raises
    ------
    SettingsError
        Naming the source if it is neither.
    """
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
        value = parse_json(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{source}: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{source}: expected a JSON object")
    return value


def given_yaml(path: str, *, source: str, extra: str) -> dict[str, Any]:
    """Parse a YAML file that holds a mapping.

    Raises
    ------
    MissingExtraError
        If nothing here reads YAML; `extra` brings it.
    SettingsError
        Naming the source and the file if it holds none.
    """
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtraError(package="pyyaml", extra=extra, purpose=source) from error
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{source} {path}: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{source} {path}: a mapping expected")
    return value


def options_table(kind: type[BaseModel]) -> str:
    """Every key, its default and what it does, as a Markdown table."""
    lines = ["| Key | Default | What it does |", "| --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        value = field.default
        shown = "not set" if value is None else f"`{getattr(value, 'value', value)}`"
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines)
