"""The interface of recompute policies and the registry that makes them known by name.

A policy says which tokens inside reused spans are computed anyway, for quality.
To add one: a file of about 40 lines with one frozen dataclass that is decorated
with :func:`register_policy`. From then on it is in the test matrix, on the
leaderboard and in the docs by itself. Outside this repository: docs/policies.md.

Most policies look at tokens and spans alone. One that has to see what the model does
with the borrowed K/V is *dynamic*: once the spans are in place, the engine hands it
a :class:`Probe` and asks for more runs.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, Span
from semblend.core.tokens import TokenArray
from semblend.planning.boundaries import Boundaries

Scores = npt.NDArray[np.float64]
"""One number a prompt token, shape [prompt_tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRequest:
    """What a policy may look at: the prompt, the spans in it and where the region ends."""

    tokens: TokenArray
    """Target token ids, shape [prompt_tokens]."""
    spans: tuple[Span, ...]
    end: int
    boundaries: Boundaries | None = None
    """Where sentences end; None where no tokenizer is known."""
    taken: tuple[Hole, ...] = ()
    """For dynamic policies: runs that are recomputed already."""


class Probe(Protocol):
    """What an engine can tell once a plan's spans are in place. Each call costs compute."""

    def tail_attention(self) -> Scores:
        """Attention mass the prompt's last queries put on each token in the later layers."""
        ...

    def deviation(self, layers: int) -> Scores:
        """Relative deviation of each token's borrowed K/V from cold, over the first layers."""
        ...

    def edit_attention(self, layers: int) -> Scores:
        """Attention mass each token of the region puts on what no span covers."""
        ...


class RecomputePolicy(ABC):
    """Chooses runs of tokens inside spans to compute anyway.

    `runs` returns holes in any order; the planner merges them and clips them to
    the spans. A policy never raises for a valid request.
    """

    name: ClassVar[str]
    grid: ClassVar[tuple[str, ...]] = ()
    """Specs that certificates and the leaderboard try, from cheap to dear; empty: the default."""
    ordered: ClassVar[bool] = True
    """Whether later entries of the grid recompute more of the same, so quality may not fall."""

    @property
    def dynamic(self) -> bool:
        """Whether the policy wants a probe."""
        return False

    @property
    def shifts_depth(self) -> bool:
        """Whether moved K/V is shifted to its new depth: so it is where a policy inside says so."""
        inside = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return any(isinstance(one, RecomputePolicy) and one.shifts_depth for one in inside)

    @abstractmethod
    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Runs to recompute, in target positions."""

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """Further runs, chosen with the spans in place. Called for dynamic policies."""
        return []

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


_loading = threading.RLock()
_loaded = False


def known_policies() -> dict[str, type[RecomputePolicy]]:
    """All policies by name: those in this folder, and those of plug-ins."""
    with _loading:
        _load_once()
        return dict(sorted(POLICIES.items()))


def _load_once() -> None:
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("semblend.planning.policies")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    # Before the plug-ins, which may ask for known policies while they are imported.
    _loaded = True
    importlib.import_module("semblend.planning.policy_plugins").load_plugins()


def policy_from_spec(spec: str) -> RecomputePolicy:
    """Build a policy from text such as ``none``, ``span_head(8) + query_attention(0.1)``.

    Raises
    ------
    SettingsError
        Naming the policies there are, or the arguments this one takes.
    """
    from semblend.planning.policies.specs import parse

    return parse(spec, known_policies())


def share(value: float, *, of: str) -> float:
    """Check an argument that is a share of the reusable tokens."""
    if not 0.0 <= value <= 1.0:
        raise SettingsError(f"{of} must be in [0, 1], got {value}")
    return value


def count(value: int, *, of: str, least: int = 1) -> int:
    """Check an argument that counts tokens."""
    if value < least:
        raise SettingsError(f"{of} must be {least} or more, got {value}")
    return value


def reusable_tokens(spans: Sequence[Span]) -> int:
    """Tokens inside spans."""
    return sum(span.length for span in spans)
