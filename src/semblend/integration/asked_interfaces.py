"""Asks an installed engine for what an adapter relies on.

A version number says what was released; modules, classes and their sources say what is there.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any


def lacking(kind: Any, names: Iterable[str], *, of_instances: bool = False) -> list[str]:
    """One sentence for each name that a module, a class or a kind of record does not have.

    `of_instances` also counts what the class's source sets on itself: nothing else says that an
    instance attribute exists.
    """
    held = set(getattr(kind, "_fields", None) or dir(kind))
    if dataclasses.is_dataclass(kind):
        held |= {field.name for field in dataclasses.fields(kind)}
    source = inspect.getsource(kind) if of_instances else ""
    return [
        f"{kind.__name__} has no {name}"
        for name in names
        if name not in held and f"self.{name}" not in source
    ]


def parameters(function: Any) -> list[str]:
    """Names of a function's parameters, in order."""
    return list(inspect.signature(function).parameters)
