"""The interface of recompute policies and the registry that makes them known by name.

A policy says which tokens inside reused spans are computed anyway, for quality.
To add one: a file of about 40 lines with one frozen dataclass that is decorated
with :func:`register_policy`. From then on it is in the test matrix, on the
leaderboard and in the docs by itself.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, Span
from semblend.core.tokens import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRequest:
    """What a policy may look at: the prompt, the spans in it and where the region ends."""

    tokens: TokenArray
    """Target token ids, shape [prompt_tokens]."""
    spans: tuple[Span, ...]
    end: int


class RecomputePolicy(ABC):
    """Chooses runs of tokens inside spans to compute anyway.

    `runs` returns holes in any order; the planner merges them and clips them to
    the spans. A policy never raises for a valid request.
    """

    name: ClassVar[str]

    @abstractmethod
    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Runs to recompute, in target positions."""

    @property
    def spec(self) -> str:
        """The text that :func:`policy_from_spec` reads back as this policy."""
        values = [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]
        return self.name if not values else f"{self.name}({', '.join(map(_spec_value, values))})"


def _spec_value(value: object) -> str:
    return value.spec if isinstance(value, RecomputePolicy) else repr(value)


POLICIES: dict[str, type[RecomputePolicy]] = {}
PolicyT = TypeVar("PolicyT", bound=RecomputePolicy)


def register_policy(name: str) -> Callable[[type[PolicyT]], type[PolicyT]]:
    """Make a policy known under `name`; a name already taken is an error."""

    def add(cls: type[PolicyT]) -> type[PolicyT]:
        if name in POLICIES:
            raise SettingsError(f"recompute policy {name!r} is registered twice")
        cls.name = name
        POLICIES[name] = cls
        return cls

    return add


def known_policies() -> dict[str, type[RecomputePolicy]]:
    """All policies by name, those in this folder imported."""
    package = importlib.import_module("semblend.planning.policies")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(POLICIES.items()))


_CALL = re.compile(r"^(?P<name>[a-z_]+)(?:\((?P<arguments>.*)\))?$")


def policy_from_spec(spec: str) -> RecomputePolicy:
    """Build a policy from text such as ``none``, ``span_head(8)`` or ``random(0.1)``.

    Raises
    ------
    SettingsError
        Naming the policies there are, or the arguments this one takes.
    """
    known = known_policies()
    match = _CALL.match(spec.strip())
    if match is None or match["name"] not in known:
        raise SettingsError(f"recompute policy {spec!r}: known are {', '.join(known)}")
    cls = known[match["name"]]
    try:
        arguments: tuple[Any, ...] = (
            ast.literal_eval(f"({match['arguments']},)") if match["arguments"] else ()
        )
        return cls(*arguments)
    except (TypeError, ValueError, SyntaxError) as error:
        takes = ", ".join(f.name for f in fields(cls))  # type: ignore[arg-type]
        raise SettingsError(
            f"recompute policy {spec!r}: {match['name']} takes ({takes}): {error}"
        ) from error
