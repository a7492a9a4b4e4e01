"""Asks an installed engine for what an adapter relies on.

A version number says what was released; modules, classes and their sources say what is there.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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


def differing(kind: Any, methods: Mapping[str, Collection[str]]) -> list[str]:
    """One sentence for each method that a class does not have, or not with these parameters."""
    problems = []
    for name, expected in methods.items():
        method = getattr(kind, name, None)
        if method is None:
            problems.append(f"{kind.__name__} has no {name}")
        elif not set(expected) <= set(taken := parameters(method)):
            problems.append(f"{kind.__name__}.{name} takes {taken}")
    return problems


def unimplemented(kind: type, known: Callable[[str], bool]) -> list[str]:
    """One sentence for each method that a class must be given and that is not known here."""
    return [
        f"{kind.__name__}.{name} must be implemented and is not known"
        for name in sorted(getattr(kind, "__abstractmethods__", ()))
        if not known(name)
    ]


def unanswered(ours: type, base: type) -> list[str]:
    """Each method of an engine's class that ours could not be called for as theirs is."""

    def implements(name: str) -> bool:
        return getattr(ours, name, None) is not getattr(base, name)

    problems = unimplemented(base, implements)
    for name in sorted(set(vars(ours)) & set(dir(base))):
        mine, theirs = getattr(ours, name), getattr(base, name)
        if name.startswith("_") or not (inspect.isroutine(mine) and inspect.isroutine(theirs)):
            continue
        if not _answers(mine, theirs):
            problems.append(f"{base.__name__}.{name}{inspect.signature(theirs)}")
    return problems


def _answers(ours: Callable[..., Any], theirs: Callable[..., Any]) -> bool:
    """Whether our method can be called with what theirs is called with."""
    mine, given = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    plain = [name for name, parameter in given.items() if parameter.kind not in _GATHERING]
    gathers = any(parameter.kind in _GATHERING for parameter in mine.values())
    if not gathers and [name for name in mine if name in given] != plain:
        return False
    return all(
        name in given
        for name, parameter in mine.items()
        if parameter.kind not in _GATHERING and parameter.default is parameter.empty
    )


def parameters(function: Any) -> list[str]:
    """Names of a function's parameters, in order."""
    return list(inspect.signature(function).parameters)
