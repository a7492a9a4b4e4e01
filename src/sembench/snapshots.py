"""Snapshot files of engine counters, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sembench.errors import ResultError
from sembench.json_text import parse_json
from sembench.live.prometheus import window
from sembench.results import Result


def read_snapshot(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ResultError(f"{path}: expected an object")
    return data


def engine_window(
    before: Mapping[str, Any], after: Mapping[str, Any], *, arm: str
) -> dict[str, Any]:
    """What the engines counted between two snapshots, for one arm."""
    return {"arm": arm, "prometheus": window(before, after)}


def with_window(result: Result, section: Mapping[str, Any]) -> Result:
    """The result with the window in its `engine` section."""
    return replace(result, engine={**(result.engine or {}), **section})
