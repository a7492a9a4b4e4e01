"""The planner: verified runs in, one immutable plan out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Evidence, Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.discovery.meaning import FUZZY_RUN_TOKENS
from semblend.discovery.runs import DonorRun
from semblend.planning.boundaries import Boundaries
from semblend.planning.cost import CostModel
from semblend.planning.cover import best_cover
from semblend.planning.edits import classify
from semblend.planning.foresight import with_probe_cost
from semblend.planning.gates import Decline, GateContext, first_decline
from semblend.planning.policies.base import RecomputePolicy
from semblend.planning.recompute import with_policy
from semblend.planning.whole_blocks import region_end, to_whole_blocks

SINK_TOKENS = 4
"""The first tokens of a request attract attention that belongs nowhere (attention sinks), so their
K/V is never copied to another position (docs/concepts.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One prompt to plan for."""

    tokens: TokenArray
    namespace: str
    runs: Sequence[DonorRun]
    policy: RecomputePolicy
    certified: bool
    evidence: Evidence
    exact_tokens: int = 0
    """Leading tokens that the engine's own prefix cache holds."""
    continued_tokens: int = 0
    """Tokens after those that the request's own chain holds, approximate."""
    donates: bool = True
    """Whether the request, computed exactly, would become a donor."""
    block_size: int = 1
    whole_blocks: bool = False
    """Round spans to whole blocks, for engines that can load nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Chooses spans, classifies them, adds recompute runs and applies the gates."""

    settings: Settings
    cost: CostModel
    donor_tokens: Callable[[str], TokenArray | None]
    boundaries: Boundaries | None = None
    """Where sentences end, for policies that recompute up to there."""
    uncertified: Decline | None = None
    """Why the model has no valid certificate, if known."""

    @property
    def shortest_run(self) -> int:
        """Tokens that a run must have to be worth looking at."""
        shortest = self.settings.min_span_tokens
        return min(shortest, FUZZY_RUN_TOKENS) if self.settings.fuzzy_chunks else shortest

    @fault_point(FaultPoint.PLAN)
    def plan(self, request: PlanRequest) -> Plan:
        """The best plan for the request, declined with a reason if a gate refuses it."""
        size = int(request.tokens.size)
        placed = request.exact_tokens + request.continued_tokens
        runs = self._cover(request, start=placed, end=max(0, size - 1))
        if request.whole_blocks:
            rounded = (to_whole_blocks(run, request.block_size) for run in runs)
            runs = [run for run in rounded if run is not None]
        spans = classify(
            runs,
            target=request.tokens,
            donor_tokens=self.donor_tokens,
            window=self.settings.edit_window_tokens,
            prefixes={
                run.donor_id: run.length
                for run in request.runs
                if run.donor_start == run.target_start == 0
            },
            boundaries=self.boundaries,
        )
        block = request.block_size if self.settings.strict_prefix_boundary else 1
        end = region_end(spans[-1].target_end, prompt_tokens=size, block_size=block) if spans else 0
        spans = [clipped for span in spans if (clipped := span.clipped(placed, end))]
        plan = Plan(
            namespace=request.namespace,
            prompt_tokens=size,
            spans=tuple(spans),
            end=end if spans else 0,
            exact_tokens=request.exact_tokens,
            continued_tokens=request.continued_tokens,
            policy=request.policy.spec,
            evidence=request.evidence,
        )
        if spans:
            plan = with_policy(plan, request.tokens, request.policy, self.boundaries)
        plan = replace(plan, cost=self.cost.estimate(plan))
        plan = with_probe_cost(
            plan, request.tokens, request.policy, cost=self.cost, boundaries=self.boundaries
        )
        context = GateContext(
            settings=self.settings,
            cost=self.cost,
            certified=request.certified,
            donates=request.donates,
        )
        if self.uncertified is not None:
            context = replace(context, uncertified=self.uncertified)
        decline = first_decline(plan, context)
        return plan if decline is None else plan.declined(*decline)

    def _cover(self, request: PlanRequest, *, start: int, end: int) -> list[DonorRun]:
        """The runs to copy; where none is worth its copy, those that a gate then declines."""
        runs = _without_sinks(request.runs)

        def cover(cost: CostModel) -> list[DonorRun]:
            return best_cover(
                runs, cost=cost, start=start, end=end, min_span_tokens=self.shortest_run
            )

        chosen = cover(self.cost)
        if chosen or not runs:
            return chosen
        return cover(replace(self.cost, load=0.0, span_fixed=0.0))


def _without_sinks(runs: Sequence[DonorRun]) -> list[DonorRun]:
    """Remove the donor's first tokens from runs, unless they keep their position."""
    kept: list[DonorRun] = []
    for run in runs:
        skip = SINK_TOKENS - run.donor_start
        if skip <= 0 or run.donor_start == run.target_start:
            kept.append(run)
        elif run.length > skip:
            kept.append(
                DonorRun(
                    donor_id=run.donor_id,
                    donor_start=run.donor_start + skip,
                    target_start=run.target_start + skip,
                    length=run.length - skip,
                )
            )
    return kept
