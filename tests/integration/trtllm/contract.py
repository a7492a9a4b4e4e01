"""The recorded signatures of the upstream interface, and how live ones are read."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "contracts"
CLASSES = ("KvCacheConnectorScheduler", "KvCacheConnectorWorker")
VALUES = ("RequestData", "SchedulerOutput")


def recorded(name: str) -> dict[str, Any]:
    """The recording of one generation."""
    value: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return value


def described(module: Any) -> dict[str, Any]:
    """A live module in the recording's form: facts, no code."""
    found: dict[str, Any] = {"classes": {}, "values": {}}
    for name in CLASSES:
        kind = getattr(module, name)
        found["classes"][name] = {
            method: {
                "parameters": [
                    one for one in inspect.signature(function).parameters if one != "self"
                ],
                "abstract": bool(getattr(function, "__isabstractmethod__", False)),
            }
            for method, function in sorted(vars(kind).items())
            if inspect.isfunction(function) and (not method.startswith("_") or method == "__init__")
        }
    for name in VALUES:
        found["values"][name] = [one.name for one in dataclasses.fields(getattr(module, name))]
    return found


def differences(live: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """What a live module has otherwise than recorded, in words."""
    found: list[str] = []
    for name in CLASSES:
        mine, theirs = record["classes"][name], live["classes"][name]
        for method in sorted({*mine, *theirs}):
            if mine.get(method) != theirs.get(method):
                both = f"recorded {mine.get(method)}, live {theirs.get(method)}"
                found.append(f"{name}.{method}: {both}")
    for name in VALUES:
        if record["values"][name] != live["values"][name]:
            found.append(f"{name}: recorded {record['values'][name]}, live {live['values'][name]}")
    return found
