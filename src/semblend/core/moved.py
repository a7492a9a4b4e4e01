"""Support for older import paths: modules that only point to the new place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

_PAGE = "docs/switching.md"


def moved(old: str, *places: str) -> Callable[[str], Any]:
    """Warn that `old` is an older name, and return its module `__getattr__`.

    Names are looked up in `places`, in order, on first use, so that importing an older name needs
    no engine.
    """
    # Three frames up is the importing module; frames of the import system do not count.
    warnings.warn(
        f"{old} is an older name; import from {' or '.join(places)} ({_PAGE})",
        DeprecationWarning,
        stacklevel=3,
    )

    def look_up(name: str) -> Any:
        if name.startswith("__"):  # asked for by Python itself
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        for place in places:
            try:
                return getattr(import_module(place), name)
            except AttributeError:
                continue
        raise AttributeError(f"{old}.{name} no longer exists in {' or '.join(places)}; see {_PAGE}")

    return look_up
