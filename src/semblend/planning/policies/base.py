"""The interface of recompute policies, and the registry of their names.

A policy chooses which tokens inside reused spans are computed anyway, for quality. To add one,
write a file of about 40 lines with one frozen dataclass decorated with :func:`register_policy`. It
then appears automatically in the test matrix, on the leaderboard and in the docs. For policies
outside this repository see docs/policies.md.

Most policies look only at tokens and spans. One that must see what the model does with reused K/V
names what it `probes`. Once the spans are in place, the engine passes it a :class:`Probe` and asks
for more runs.

A policy is a value: :func:`policy_from_spec` parses a text once and then always returns the same
object for it.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import ClassVar, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole, Span
from semblend.core.tokens import TokenArray
from semblend.planning.boundaries import Boundaries

Scores = npt.NDArray[np.float64]
"""One number per prompt token, shape [prompt_tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRequest:
    """What a policy may examine: the prompt, its spans and the end of the region."""

    tokens: TokenArray
    """Target token ids, shape [prompt_tokens]."""
    spans: tuple[Span, ...]
    end: int
    boundaries: Boundaries | None = None
    """Where sentences end; None if the tokenizer is unknown."""
    taken: tuple[Hole, ...] = ()
    """For dynamic policies: runs already chosen for recompute."""


class ProbeKind(StrEnum):
    """A question to a :class:`Probe`, named after its method."""

    TAIL_ATTENTION = "tail_attention"
    DEVIATION = "deviation"
    EDIT_ATTENTION = "edit_attention"


class Probe(Protocol):
    """What an engine can report once a plan's spans are in place. Each call costs compute."""

    def tail_attention(self) -> Scores:
        """Attention mass that the prompt's last queries put on each token in the later layers."""
        ...

    def deviation(self, layers: int) -> Scores:
        """Relative deviation of each token's reused K/V from cold, over the first layers."""
        ...

    def edit_attention(self, layers: int) -> Scores:
        """Attention mass that each token of the region puts on tokens outside spans."""
        ...


class RecomputePolicy(ABC):
    """Chooses runs of tokens inside spans to compute anyway.

    `runs` returns holes in any order; the planner merges them and clips them to the spans. A policy
    never raises for a valid request.
    """

    name: ClassVar[str]
    grid: ClassVar[tuple[str, ...]] = ()
    """Specs that certificates and the leaderboard try, cheapest first; empty for the default."""
    ordered: ClassVar[bool] = True
    """Whether later grid entries recompute more of the same, so that quality may not fall."""
    candidates: ClassVar[tuple[str, ...]] = ()
    """Specs that a certificate may choose. A policy used only for comparison has none."""

    @property
    def inside(self) -> tuple[RecomputePolicy, ...]:
        """The policies this one is composed of; usually none."""
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, RecomputePolicy))

    @cached_property
    def probes(self) -> frozenset[ProbeKind]:
        """What the policy may ask of a probe: by default, what the policies inside ask.

        An engine that cannot answer one of these declines the plan before loading anything.
        """
        return frozenset(kind for one in self.inside for kind in one.probes)

    @final
    @property
    def dynamic(self) -> bool:
        """Whether the policy needs a probe."""
        return bool(self.probes)

    @cached_property
    def shifts_depth(self) -> bool:
        """Whether moved K/V is shifted to its new depth: by default, if a policy inside does so."""
        return any(one.shifts_depth for one in self.inside)

    @abstractmethod
    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Runs to recompute, in target positions."""

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """More runs, chosen with the spans in place. Called for dynamic policies."""
        return []

    @cached_property
    def spec(self) -> str:
        """The text that :func:`policy_from_spec` parses as this policy."""
        return self._call()

    def _call(self) -> str:
        """The name with its arguments."""
        values = [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]
        return self.name if not values else f"{self.name}({', '.join(map(_spec_value, values))})"


def _spec_value(value: object) -> str:
    return value.spec if isinstance(value, RecomputePolicy) else repr(value)


POLICIES: dict[str, type[RecomputePolicy]] = {}
PolicyT = TypeVar("PolicyT", bound=RecomputePolicy)


def register_policy(name: str) -> Callable[[type[PolicyT]], type[PolicyT]]:
    """Register a policy under `name`. A name that is already taken is an error."""

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
    # Set before loading plug-ins, which may call this while they are imported.
    _loaded = True
    importlib.import_module("semblend.planning.policy_plugins").load_plugins()
    # A refused plug-in may have parsed its own policies during import. Forget those.
    _kept.cache_clear()


KEPT_SPEC_CHARACTERS = 512
"""Longer texts are parsed each time. Requests may name policies, so the cache must be bounded."""


def policy_from_spec(spec: str) -> RecomputePolicy:
    """The policy for a text such as ``none`` or ``span_head(8) + query_attention(0.1)``.

    Raises
    ------
    SettingsError
        Naming the known policies, or the arguments this one takes.
    """
    return _kept(spec) if len(spec) <= KEPT_SPEC_CHARACTERS else _read(spec)


def _read(spec: str) -> RecomputePolicy:
    from semblend.planning.policies.specs import parse

    return parse(spec, known_policies())


_kept = lru_cache(maxsize=256)(_read)


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
