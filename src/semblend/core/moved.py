"""Older import paths: a module that is only a name says where its contents are now."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

_PAGE = "docs/switching.md"


def moved(old: str, *places: str) -> Callable[[str], Any]:
    """Warn that `old` is an older name; what to use as that module's `__getattr__`.

    Names are looked up in `places`, the first one first, when somebody asks for them: importing an
    older name needs no engine.
    """
    # Three frames up is whoever imported the module; the import system's own do not count.
    warnings.warn(
        f"{old} is an older name; import from {' or '.join(places)} ({_PAGE})",
        DeprecationWarning,
        stacklevel=3,
    )

    def look_up(name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        for place in places:
            try:
                return getattr(import_module(place), name)
            except AttributeError:
                continue
        raise AttributeError(
            f"{old}.{name} has no successor of this name in {' or '.join(places)}; see {_PAGE}"
        )

    return look_up
