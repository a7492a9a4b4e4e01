"""Recomputes the blocks whose K/V differs most from cold in the first layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from semblend.core.plan import Hole, SpanKind
from semblend.planning.policies.base import (
    Probe,
    ProbeKind,
    RecomputePolicy,
    RecomputeRequest,
    count,
    register_policy,
    reusable_tokens,
    share,
)
from semblend.planning.policies.block_scores import best_blocks


@register_policy("kv_deviation")
@dataclass(frozen=True, slots=True)
class KvDeviation(RecomputePolicy):
    """`ratio` of the reusable tokens, in blocks that deviate most over the first `layers`.

    Those layers are computed for all tokens, which makes them exact but has a cost. Choosing by
    deviation is CacheBlend's idea (arXiv 2405.16444).
    """

    grid: ClassVar[tuple[str, ...]] = tuple(f"kv_deviation({r})" for r in (0.1, 0.2))

    ratio: float = 0.1
    layers: int = 3
    block: int = 32

    def __post_init__(self) -> None:
        share(self.ratio, of="kv_deviation: ratio")
        # Layer 0's K/V depends only on its own token.
        count(self.layers, of="kv_deviation: layers", least=2)
        count(self.block, of="kv_deviation: block")

    @cached_property
    def probes(self) -> frozenset[ProbeKind]:
        return frozenset({ProbeKind.DEVIATION})

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """Nothing before the layers are computed."""
        return []

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        spans = [span for span in request.spans if span.kind is not SpanKind.PREFIX]
        budget = self.ratio * reusable_tokens(request.spans)
        if not spans or budget < 1:
            return []
        scores = probe.deviation(self.layers)
        return best_blocks(request, spans, scores, budget=budget, size=self.block)
