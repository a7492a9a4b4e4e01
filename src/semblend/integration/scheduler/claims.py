"""Claiming tokens: what the engine is told it need not compute, and why.

The answer is 0 unless the K/V can be supplied, and nothing outside this module's own
state changes before the engine allocates.

Every claim is asynchronous: the engine allocates blocks, publishes none of them, and
schedules the request only when its load has ended. So a failed load is known before any
step relies on it, and no other request can hit blocks that hold nothing yet. An adapter
never leaves a failure to the engine's own rewind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.modes import Mode
from semblend.integration.plan_cuts import within_hole_budget
from semblend.integration.probing import probes
from semblend.integration.scheduler.engine_planner import EnginePlanner
from semblend.integration.scheduler.plan_ration import PlanRation
from semblend.integration.scheduler.port import EngineRequest
from semblend.integration.scheduler.remote_donors import RemoteDonors
from semblend.integration.scheduler.request import Claim, Request, Stage
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.scheduler.staged import Rungs
from semblend.integration.stats import Stats

NOTHING = 0
ASK_AGAIN = None

_ADVERTISED = {
    Mode.EXACT_PREFIX: "exact_prefix_load_advertised",
    Mode.REQUEST_ONLY_EXPERIMENTAL: "request_only_load_advertised",
    Mode.SEGMENTED: "semantic_span_load_advertised",
    Mode.SEGMENTED_EXPERIMENTAL: "semantic_span_load_advertised",
}
_RUNG_ADVERTISED = "segmented_prefill_segment_advertised"


class Claims:
    """Makes claims for requests; owns the budgets of the step being scheduled."""

    def __init__(
        self,
        *,
        setup: SchedulerSetup,
        planner: EnginePlanner,
        audit: AuditStream,
        stats: Stats,
        staged: Rungs,
        remote: RemoteDonors | None,
        objection: Callable[[Request[Any]], str | None],
    ) -> None:
        """Start with whole budgets.

        Parameters
        ----------
        remote
            Fetches donors from other machines where that pays.
        objection
            Says why reuse is off for a request's namespace, if it is.
        """
        self._setup = setup
        self._ladders_only = setup.staged
        self._planner = planner
        self._audit = audit
        self._stats = stats
        self._staged = staged
        self._remote = remote
        self._objection = objection
        self._hole_budget = self._holes_left = setup.hole_budget
        self._ration = PlanRation(setup.plan_seconds)
        self._stopped: str | None = None

    @property
    def may_load(self) -> bool:
        """Whether anything is claimed at present."""
        return self._setup.may_load and self._planner.allows_loads and self._stopped is None

    def stop(self, why: str) -> None:
        """Stop claiming."""
        self._stopped = why

    def next_step(self) -> None:
        """A step was scheduled: the next one has whole budgets."""
        self._holes_left = self._hole_budget
        self._ration.next_step()

    def step_done(self) -> None:
        """The engine has run a step."""
        self._ration.step_done()

    def admitted(self, request: Request[EngineRequest]) -> None:
        """A claim was allocated and takes its part of this step's budget."""
        self._holes_left -= 0 if request.claim is None else request.claim.pass_tokens

    def claim(
        self,
        request: Request[EngineRequest],
        computed_tokens: int,
        *,
        live: Iterable[EngineRequest],
    ) -> int | None:
        """How many tokens after `computed_tokens` can be supplied. Idempotent.

        `live` are the handles of all requests that have not ended.
        """
        if request.stage is Stage.LOADED:
            return self._claim_again(request, computed_tokens)
        if request.started or request.stage is not Stage.SEEN:
            return NOTHING  # preempted: it continues as it began
        request.found_cached(computed_tokens)
        if request.arrival.refusal is not None:
            request.decline(DeclineReason.UNSUPPORTED, request.arrival.refusal)
            return NOTHING
        if self._stopped is not None:
            request.decline(DeclineReason.DISCOVERY_ONLY, self._stopped)
            return NOTHING
        if request.ladder_id is not None:
            plan = self._staged.plan(request, computed_tokens)
            if plan is None:
                return NOTHING
        else:
            plan = self._planned(request)
            if plan is None:
                self._stats.count("deferred_steps")
                return ASK_AGAIN
        if self._waits_for_remote(request, plan, computed_tokens):
            return ASK_AGAIN
        if not self._may_claim(request, plan):
            return NOTHING
        return self._claimed(request, plan, computed_tokens, live)

    def _waits_for_remote(
        self, request: Request[EngineRequest], plan: Plan, computed_tokens: int
    ) -> bool:
        """Whether a better donor is on its way from another machine."""
        return (
            self._remote is not None
            and self._setup.may_load
            and request.arrival.may_reuse
            and request.ladder_id is None
            and self._remote.waits_for(request, plan, computed_tokens)
        )

    def _planned(self, request: Request[EngineRequest]) -> Plan | None:
        """The request's plan, made once for one set of donors; None where the ration is spent."""
        generation, losses = self._planner.generation, self._planner.losses
        placed = request.exact_tokens, request.account.continued_tokens
        known = request.plan_for(placed)
        if known is not None and request.generation == generation:
            return known
        serves = known is not None and self._serves(request, known)
        if serves and not self._ration.renews:
            return known
        if not serves and not self._ration.asks():
            return None
        started = time.perf_counter()
        first = request.plan is None
        with self._ration.spending(renews=serves):
            plan = self._planner.plan(
                request.tokens,
                request.namespace,
                account=request.account,
                exact_tokens=request.exact_tokens,
                continued_tokens=request.account.continued_tokens,
                policy=request.arrival.policy,
                donates=request.arrival.wants_capture is not False,
            )
        request.planned(plan, placed, generation=generation, losses=losses)
        self._stats.time("lookup", time.perf_counter() - started)
        if first:
            self._audit.looked_up(request.request_id, plan)
        return plan

    def _serves(self, request: Request[EngineRequest], plan: Plan) -> bool:
        """Whether a plan made for other donors can still be carried out."""
        if not plan.executable:
            return False
        losses = self._planner.losses
        if request.losses == losses:
            return True
        held = self._planner.still_held(plan.donor_ids)
        if held:
            request.losses = losses
        return held

    def _may_claim(self, request: Request[EngineRequest], plan: Plan) -> bool:
        if not plan.executable:
            if plan.reason is not None:
                request.decline(plan.reason, plan.detail)
            return False
        objection = self._objection(request)
        if objection is not None:
            request.decline(DeclineReason.SHADOW_DIVERGED, objection)
            return False
        if not request.arrival.may_reuse:
            request.decline(DeclineReason.DISABLED, "this request asks for no reuse")
            return False
        if not self._setup.may_load:
            request.decline(DeclineReason.DISCOVERY_ONLY, "this connector loads nothing")
            return False
        if self._ladders_only and request.ladder_id is None:
            request.decline(DeclineReason.DISCOVERY_ONLY, "staged execution serves ladders only")
            return False
        return True

    def _claimed(
        self,
        request: Request[EngineRequest],
        plan: Plan,
        computed_tokens: int,
        live: Iterable[EngineRequest],
    ) -> int | None:
        if cheaper_computed_once(plan, samples := request.handle.samples(live)):
            why = f"computing the prompt once for {samples} samples is cheaper"
            request.decline(DeclineReason.NOT_WORTH_IT, why)
            return NOTHING
        cut = request.cut(plan, self._within_budget)
        if (
            cut is None
            or cut.end <= computed_tokens
            or (holes := request.offer(cut).pass_tokens) > self._hole_budget
        ):
            request.decline(DeclineReason.NO_CAPACITY, "more tokens than one pass may compute")
            return NOTHING
        if holes > self._holes_left:
            self._stats.count("deferred_steps")
            return ASK_AGAIN
        if cut is not plan:
            request.account.claimed(cut)
        first = request.reuse is None
        claim = request.make_claim(cut)
        self._ration.claimed()
        if first:
            staged = request.ladder_id is not None
            event = _RUNG_ADVERTISED if staged else _ADVERTISED[self._setup.mode]
            standing = self._setup.mode.standing
            self._audit.advertised(event, request.request_id, cut, standing=standing)
        return claim.end - computed_tokens

    def _within_budget(self, offer: Claim) -> Plan | None:
        """As much of a plan as one pass can compute."""
        if offer.pass_tokens <= self._hole_budget:
            return offer.plan
        return within_hole_budget(offer.plan, self._hole_budget)

    def _claim_again(self, request: Request[EngineRequest], computed_tokens: int) -> int | None:
        """A preempted request is back: claim again what its private blocks no longer hold."""
        plan = request.plan
        if (
            plan is None
            or probes(plan)  # what its policy chose the first time is not known here
            or computed_tokens >= plan.end
            or not self._planner.still_held(plan.donor_ids)
        ):
            return NOTHING
        rest = (span.clipped(computed_tokens, plan.end) for span in plan.spans)
        spans = tuple(span for span in rest if span is not None)
        if not spans:
            return NOTHING
        runs = (
            replace(run, start=max(run.start, computed_tokens))
            for run in plan.recompute
            if run.end > computed_tokens
        )
        again = replace(
            plan,
            spans=spans,
            recompute=tuple(runs),
            exact_tokens=computed_tokens,
            continued_tokens=0,
        )
        holes = sum(map(len, again.holes))
        if holes > self._holes_left:
            return ASK_AGAIN
        self._ration.claimed()
        return request.make_claim(again).end - computed_tokens


def cheaper_computed_once(plan: Plan, samples: int) -> bool:
    """Whether one cold prefill that all samples share costs less than a load for each.

    If computed, the first fills the prefix cache and the others hit it in the same step. Blocks
    with approximate K/V are private to a request, so each sample would need its own load.
    """
    return samples > 1 and 0 < plan.cost.cold <= samples * plan.cost.planned
