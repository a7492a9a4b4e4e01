"""A limit on another policy: what would cost too much is not reused at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from semblend.core.plan import Hole, Span, merge_holes
from semblend.planning.overlaps import parts_inside
from semblend.planning.policies.base import (
    Probe,
    RecomputePolicy,
    RecomputeRequest,
    register_policy,
    share,
)
from semblend.planning.policies.none import NoRecompute


@register_policy("budget")
@dataclass(frozen=True, slots=True)
class Budget(RecomputePolicy):
    """`policy`, declining spans until the rest costs at most `ratio` of their tokens.

    Where more than `most` of all tokens would be computed anyway, all spans are declined.

    Complete spans are dropped, starting with the largest recomputed share: densely edited text has
    little to reuse, and its K/V is the least reliable. Runs added by a probe are taken best first
    while there is room, so the limit holds for the finished plan.
    """

    grid: ClassVar[tuple[str, ...]] = (
        "budget(edit_dependents(1, 8) + span_head(8), 0.15)",
        *(
            "budget(edit_dependents(1, 8) + span_head(8) "
            f"+ query_attention({ratio}, 16, 'displaced'), {ratio})"
            for ratio in (0.1, 0.2)
        ),
    )

    policy: RecomputePolicy = field(default_factory=NoRecompute)
    ratio: float = 0.15
    most: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.policy, RecomputePolicy):
            raise TypeError(f"expected a policy, got {self.policy!r}")
        share(self.ratio, of="budget: ratio")
        share(self.most, of="budget: most")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """The policy's runs, plus whole spans if those cost too much."""
        wanted = merge_holes(self.policy.runs(request))
        price = {span: _overlap(span, wanted) for span in request.spans}
        kept = sorted(request.spans, key=lambda span: price[span] / span.length)
        spent, length = sum(price.values()), sum(span.length for span in kept)
        declined: list[Hole] = []
        while kept and spent > self.ratio * length:
            span = kept.pop()
            spent, length = spent - price[span], length - span.length
            declined.append(Hole(span.target_start, span.target_end))
        if sum(map(len, declined)) + spent > self.most * sum(s.length for s in request.spans):
            return [Hole(span.target_start, span.target_end) for span in request.spans]
        return [*wanted, *declined]

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The policy's probed runs, best first, until the budget is used up."""
        taken = np.zeros(len(request.tokens), dtype=np.bool_)
        for run in request.taken:
            taken[run.start : run.end] = True
        kept = [s for s in request.spans if not taken[s.target_start : s.target_end].all()]
        spent = sum(int(taken[s.target_start : s.target_end].sum()) for s in kept)
        room = self.ratio * sum(span.length for span in kept) - spent
        if room < 1:
            return []
        chosen: list[Hole] = []
        for run in self.policy.probed_runs(request, probe):
            room -= int((~taken[run.start : run.end]).sum())
            if room < 0:
                break
            taken[run.start : run.end] = True
            chosen.append(run)
        return chosen


def _overlap(span: Span, runs: tuple[Hole, ...]) -> int:
    return sum(map(len, parts_inside(runs, span.target_start, span.target_end)))
