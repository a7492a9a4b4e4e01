"""`semblend serve --config FILE`: the command's flags, and settings, from a YAML or TOML file.

Keys are the flags without dashes (`max_concurrent`, `model`); the table `settings` holds fields of
docs/settings.md. A flag on the command line wins over the file, which wins over a variable.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from semblend.core.errors import SettingsError
from semblend.core.settings import Settings, nearest

_SETTINGS = "semblend.settings"


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command. A callback of the option.

    Raises
    ------
    SettingsError
        Naming the file and the key that is wrong.
    """
    if path is None or context.resilient_parsing:
        return path
    values = _table(path)
    settings = values.pop("settings", {})
    if not isinstance(settings, dict):
        raise SettingsError(f"{path}: settings: a table of settings expected")
    for name in settings:
        if name not in Settings.model_fields:
            hint = nearest(str(name), Settings.model_fields)
            raise SettingsError(f"{path}: settings.{name}: no such setting{hint}")
    flags = {p.name: p for p in context.command.params if p.name and p.name != "config"}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in flags:
            raise SettingsError(f"{path}: {key}: no such key{nearest(name, flags)}")
        defaults[name] = _checked(path, key, value, flags[name])
    context.default_map = {**(context.default_map or {}), **defaults}
    context.meta[_SETTINGS] = settings
    return path


def settings_given(context: typer.Context) -> dict[str, Any]:
    """The settings of the file, if one was read."""
    return dict(context.meta.get(_SETTINGS, {}))


def _checked(path: Path, key: str, value: Any, flag: Any) -> Any:
    """A value of the shape its flag takes; what it must be is checked with the flag itself."""
    many, is_flag = bool(getattr(flag, "multiple", False)), bool(getattr(flag, "is_flag", False))
    if isinstance(value, list) is not many or isinstance(value, dict):
        kind = "a list" if many else "one value"
        raise SettingsError(f"{path}: {key}: {kind} expected, got {value!r}")
    if isinstance(value, bool) is not is_flag:
        kind = "true or false expected" if is_flag else "true and false are no value of it"
        raise SettingsError(f"{path}: {key}: {kind}, got {value!r}")
    if is_flag:
        return value
    return [str(each) for each in value] if many else str(value)


def _table(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not text in UTF-8") from error
    try:
        data = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: a table of keys expected")
    return data


def _yaml(text: str) -> Any:
    # Comes with the extra `serve`: transformers reads YAML with it.
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
