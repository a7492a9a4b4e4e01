"""Claiming tokens: what `get_num_new_matched_tokens` answers, and why.

The answer is (0, False) unless the K/V can be supplied, and nothing outside this
module's own state changes before the engine allocates.

Every claim is asynchronous, `(tokens, True)`: the engine allocates blocks, publishes none
of them, and schedules the request only when its load has ended. So a failed load is known
before any step counted on it, and no other request can hit blocks that hold nothing yet.
A synchronous claim that fails is rewound by vLLM on the host alone, which answers
garbage under the V2 runner and under asynchronous scheduling (0.32).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import PLANNED, AuditStream
from semblend.integration.plan_cuts import within_hole_budget
from semblend.integration.vllm.bridge import PlannerBridge
from semblend.integration.vllm.exchange import RemoteDonors
from semblend.integration.vllm.modes import Execution, Mode
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.request_state import (
    Progress,
    RequestState,
    probes,
    tokens_to_compute,
)
from semblend.integration.vllm.samples import cheaper_computed_once, samples_of
from semblend.integration.vllm.staged import StagedClaims
from semblend.integration.vllm.stats import SemBlendStats

Answer = tuple[int | None, bool]
NOTHING: Answer = (0, False)
ASK_AGAIN: Answer = (None, False)

_ADVERTISED = {
    Mode.EXACT_PREFIX: "exact_prefix_load_advertised",
    Mode.REQUEST_ONLY_EXPERIMENTAL: "request_only_load_advertised",
    Mode.SEGMENTED: "semantic_span_load_advertised",
    Mode.SEGMENTED_EXPERIMENTAL: "semantic_span_load_advertised",
}


class Claims:
    """Makes claims for requests; owns the hole budget of the step being scheduled."""

    def __init__(
        self,
        *,
        bridge: PlannerBridge,
        options: ConnectorOptions,
        audit: AuditStream,
        stats: SemBlendStats,
        staged: StagedClaims,
        hole_budget: int,
        may_load: bool,
    ) -> None:
        self._bridge = bridge
        self._options = options
        self._audit = audit
        self._stats = stats
        self._staged = staged
        self._hole_budget = hole_budget
        self._holes_left = hole_budget
        self._may_load = may_load
        self._stopped: str | None = None
        self.remote: RemoteDonors | None = None
        self.objection: Callable[[RequestState], str | None] = lambda state: None
        """Why reuse is off for a request's namespace, if it is."""

    @property
    def may_load(self) -> bool:
        """Whether anything is claimed at present."""
        certified = self._options.mode is not Mode.SEGMENTED or self._bridge.certified
        return self._may_load and certified and self._stopped is None

    def stop(self, why: str) -> None:
        """Claim nothing any more."""
        self._stopped = why

    def next_step(self) -> None:
        """A step was scheduled: the next one has the whole hole budget."""
        self._holes_left = self._hole_budget

    def admitted(self, state: RequestState) -> None:
        """A claim was allocated and takes its part of this step's budget."""
        self._holes_left -= state.pass_tokens

    def claim(self, state: RequestState, computed_tokens: int, *, live: Iterable[Any]) -> Answer:
        """How many tokens behind `computed_tokens` can be supplied. Idempotent.

        `live` are the engine's requests that have not ended.
        """
        if state.progress is Progress.CONFIRMED:
            return self._claim_again(state, computed_tokens)
        if state.started or state.progress is Progress.FAILED:
            return NOTHING  # preempted: it goes on as it began
        state.exact_tokens = computed_tokens
        if state.refusal is not None:
            state.decline(DeclineReason.UNSUPPORTED, state.refusal)
            return NOTHING
        if self._stopped is not None:
            state.decline(DeclineReason.DISCOVERY_ONLY, self._stopped)
            return NOTHING
        if state.ladder_id is not None:
            plan = self._staged.plan(state, computed_tokens)
        else:
            plan = self._planned(state, computed_tokens)
        if plan is None:
            return NOTHING
        if self._waits_for_remote(state, plan, computed_tokens):
            return ASK_AGAIN
        if not self._may_claim(state, plan):
            return NOTHING
        return self._claimed(state, plan, computed_tokens, live)

    def _waits_for_remote(self, state: RequestState, plan: Plan, computed_tokens: int) -> bool:
        """Whether a better donor is on its way from another machine."""
        return (
            self.remote is not None
            and self._may_load
            and state.may_reuse
            and state.ladder_id is None
            and self.remote.waits_for(state, plan, computed_tokens)
        )

    def _planned(self, state: RequestState, computed_tokens: int) -> Plan:
        """The request's plan, made once for one set of donors."""
        made_for = (computed_tokens, self._bridge.generation)
        if state.plan is not None and state.planned_at == made_for:
            return state.plan
        started = time.perf_counter()
        first = state.plan is None
        state.plan = self._bridge.plan(
            state.tokens,
            state.namespace,
            request_id=state.request_id,
            exact_tokens=computed_tokens,
            policy=state.policy,
        )
        state.planned_at = made_for
        self._stats.time("lookup", time.perf_counter() - started)
        if first:
            self._audit_lookup(state, state.plan)
        return state.plan

    def _may_claim(self, state: RequestState, plan: Plan) -> bool:
        if not plan.executable:
            if plan.reason is not None:
                state.decline(plan.reason, plan.detail)
            return False
        objection = self.objection(state)
        if objection is not None:
            state.decline(DeclineReason.SHADOW_DIVERGED, objection)
            return False
        if not state.may_reuse:
            state.decline(DeclineReason.DISABLED, "this request asks for no reuse")
            return False
        if not self._may_load:
            state.decline(DeclineReason.DISCOVERY_ONLY, "this connector loads nothing")
            return False
        staged = self._options.mode.segmented and self._options.execution is Execution.STAGED
        if staged and state.ladder_id is None:
            state.decline(DeclineReason.DISCOVERY_ONLY, "staged execution serves ladders only")
            return False
        return True

    def _claimed(
        self, state: RequestState, plan: Plan, computed_tokens: int, live: Iterable[Any]
    ) -> Answer:
        if cheaper_computed_once(plan, samples := samples_of(state.request, live)):
            why = f"computing the prompt once for {samples} samples is cheaper"
            state.decline(DeclineReason.NOT_WORTH_IT, why)
            return NOTHING
        cut = within_hole_budget(plan, self._hole_budget)
        if (
            cut is None
            or cut.end <= computed_tokens
            or (holes := tokens_to_compute(cut)) > self._hole_budget
        ):
            state.decline(DeclineReason.NO_CAPACITY, "more tokens than one pass may compute")
            return NOTHING
        if holes > self._holes_left:
            self._stats.count("deferred_steps")
            return ASK_AGAIN
        if cut is not plan:
            state.plan = cut
            self._bridge.pipeline.ledger.open(state.request_id, cut)
        self._mark(state, cut)
        return state.claim_end - computed_tokens, True

    def _mark(self, state: RequestState, plan: Plan) -> None:
        state.plan = plan
        state.supplied_tokens = plan.reused_tokens
        state.recomputed_tokens = plan.recomputed_tokens
        state.hole_tokens = plan.hole_tokens
        state.make_claim(plan)
        if not state.advertised:
            state.advertised = True
            self._advertise(state, plan)

    def _claim_again(self, state: RequestState, computed_tokens: int) -> Answer:
        """A preempted request comes back: what its private blocks no longer hold, once more."""
        plan = state.plan
        if (
            plan is None
            or probes(plan)  # what its policy chose the first time is not known here
            or computed_tokens >= plan.end
            or not self._bridge.still_held(plan)
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
        again = replace(plan, spans=spans, recompute=tuple(runs), exact_tokens=computed_tokens)
        holes = sum(map(len, again.holes))
        if holes > self._holes_left:
            return ASK_AGAIN
        state.resumes = True
        state.make_claim(again)
        return state.claim_end - computed_tokens, True

    # -- saying so -------------------------------------------------------------------

    def _audit_lookup(self, state: RequestState, plan: Plan) -> None:
        if plan.spans:
            self._audit.lookup_hit(
                state.request_id,
                donor_id=",".join(plan.donor_ids),
                kind=plan.spans[0].kind.value,
                reusable_tokens=plan.reused_tokens,
                reason=plan.reason.value if plan.reason is not None else PLANNED,
                lookup_ms=plan.evidence.lookup_ms,
                spans=len(plan.spans),
                matched_tokens=plan.evidence.matched_tokens,
            )
            if plan.reason is not None:
                self._audit.event(
                    "discovery_only_no_supply", state.request_id, reason=plan.reason.value
                )
            return
        reason = plan.reason.value if plan.reason is not None else "no_match"
        if plan.reason is DeclineReason.SHORT_PROMPT:
            self._audit.event("lookup_skipped_short_prompt", state.request_id)
        elif plan.reason is DeclineReason.INTERNAL_ERROR:
            self._audit.event("lookup_error", state.request_id, detail=plan.detail)
        else:
            self._audit.lookup_miss(
                state.request_id,
                reason=reason,
                miss_donor_count=plan.evidence.candidate_donors,
                lookup_ms=plan.evidence.lookup_ms,
            )

    def _advertise(self, state: RequestState, plan: Plan) -> None:
        first = plan.spans[0]
        self._audit.load_advertised(
            "segmented_prefill_segment_advertised"
            if state.ladder_id is not None
            else _ADVERTISED[self._options.mode],
            state.request_id,
            donor_id=",".join(plan.donor_ids),
            tokens=plan.reused_tokens,
            standing=self._options.mode.standing,
            boundary=plan.end,
            target_start=first.target_start,
            donor_start=first.donor_start,
            pieces=len(plan.copies),
            donors_used=len(plan.donor_ids),
            hole_tokens=state.hole_tokens,
        )
