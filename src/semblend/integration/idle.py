"""An adapter that does nothing, for an engine whose interface is not as it is known.

It answers every call with whatever arguments, also calls that no version had when this was
written: an engine can then start, and computes everything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def idle_class(name: str, bases: tuple[type, ...], answers: Mapping[str, Callable[[], Any]]) -> Any:
    """A class of an engine's interface whose methods do nothing.

    Parameters
    ----------
    bases
        The engine's own base classes. Their methods stay where they have one.
    answers
        Methods whose answer is not None, and what makes it.
    """
    abstract = {each for base in bases for each in getattr(base, "__abstractmethods__", ())}
    members = {each: _quiet(bases, each, answers.get(each, _none)) for each in abstract}
    return type(name, bases, {**members, **{n: _method(a) for n, a in answers.items()}})


def _quiet(bases: tuple[type, ...], name: str, answer: Callable[[], Any]) -> Any:
    stated = next((getattr(base, name) for base in bases if hasattr(base, name)), None)
    return property(lambda _: answer()) if isinstance(stated, property) else _method(answer)


def _method(answer: Callable[[], Any]) -> Callable[..., Any]:
    def quiet(*_arguments: Any, **_options: Any) -> Any:
        return answer()

    return quiet


def _none() -> None:
    return None
