"""Two policies combined, written ``one + other``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from semblend.core.plan import Hole, merge_holes
from semblend.planning.policies.base import (
    Probe,
    RecomputePolicy,
    RecomputeRequest,
    register_policy,
)
from semblend.planning.policies.none import NoRecompute


@register_policy("both")
@dataclass(frozen=True, slots=True)
class Both(RecomputePolicy):
    """Everything either of two policies recomputes; written `one + other`."""

    grid: ClassVar[tuple[str, ...]] = tuple(
        f"span_head(8) + query_attention({r})" for r in (0.05, 0.1)
    )

    first: RecomputePolicy = field(default_factory=NoRecompute)
    second: RecomputePolicy = field(default_factory=NoRecompute)

    def __post_init__(self) -> None:
        for policy in (self.first, self.second):
            if not isinstance(policy, RecomputePolicy):
                raise TypeError(f"expected a policy, got {policy!r}")

    @cached_property
    def spec(self) -> str:
        """The sum. A sum on the right keeps its name, so the text parses back unchanged."""
        right = self.second._call() if isinstance(self.second, Both) else self.second.spec
        return f"{self.first.spec} + {right}"

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        return [*self.first.runs(request), *self.second.runs(request)]

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The first policy's runs, then the second's, which sees what the first took."""
        first = self.first.probed_runs(request, probe) if self.first.dynamic else []
        if not self.second.dynamic:
            return first
        taken = merge_holes((*request.taken, *first))
        return [*first, *self.second.probed_runs(replace(request, taken=taken), probe)]
