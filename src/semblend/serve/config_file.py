"""`semblend serve --config FILE`: flags and settings from a YAML or TOML file.

Keys are the flags without dashes (`max_concurrent`, `model`). The table `settings` holds fields of
docs/settings.md. The command line overrides the file, and the file overrides variables.
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
    """Make the file's values the command's defaults. Used as the option's callback.

    Raises
    ------
    SettingsError
        Naming the file and the wrong key.
    """
    if path is None or context.resilient_parsing:
        return path
    values = _table(path)
    settings = values.pop("settings", {})
    if not isinstance(settings, dict):
        raise SettingsError(f"{path}: settings: expected a table of settings")
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
    """The file's settings, if a file was read."""
    return dict(context.meta.get(_SETTINGS, {}))


def _checked(path: Path, key: str, value: Any, flag: Any) -> Any:
    """Check that a value has the shape its flag takes. The flag checks the rest."""
    many, is_flag = bool(getattr(flag, "multiple", False)), bool(getattr(flag, "is_flag", False))
    if isinstance(value, list) is not many or isinstance(value, dict):
        kind = "a list" if many else "one value"
        raise SettingsError(f"{path}: {key}: expected {kind}, got {value!r}")
    if isinstance(value, bool) is not is_flag:
        kind = "expected true or false" if is_flag else "true and false are not allowed"
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
        raise SettingsError(f"{path}: not valid UTF-8") from error
    try:
        data = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: expected a table of keys")
    return data


def _yaml(text: str) -> Any:
    # Installed with the extra `serve`: transformers needs it.
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
