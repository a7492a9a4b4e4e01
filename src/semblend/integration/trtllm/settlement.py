"""What really happened to a request: into the ledger and the audit stream."""

from __future__ import annotations

from semblend.core.errors import PlanError
from semblend.core.ledger import Ledger
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import AuditStream
from semblend.integration.trtllm.request_state import Progress, RequestState


class Settlements:
    """Settles every request once; only the ranks' word makes reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, block_size: int) -> None:
        self._ledger = ledger
        self._audit = audit
        self._block_size = block_size

    def looked_up(self, state: RequestState, plan: Plan | None, offered: int) -> None:
        """What was found for a request, and what of it was offered: evidence, not reuse."""
        reason = state.refusal
        if reason is None and state.namespace is None:
            reason = DeclineReason.INCOMPLETE_NAMESPACE.value
        if reason is None and offered == 0:
            reason = plan.reason.value if plan and plan.reason else "nothing_to_offer"
        self._audit.event(
            "lookup",
            state.key,
            found=bool(plan is not None and plan.spans),
            similarity=None if plan is None else plan.evidence.similarity,
            reuse_ratio=0.0 if plan is None else plan.reused_tokens / max(1, len(state.tokens)),
            rejection_reason=reason,
            kind="ladder_rung" if state.ladder_id is not None else "exact_prefix",
            num_new_matched_tokens=offered,
            num_computed_tokens=state.computed_tokens,
            prompt_tokens=len(state.tokens),
        )

    def answered(
        self, state: RequestState, plan: Plan, failure: str | None, *, layers: int
    ) -> None:
        """Every rank has answered a load: it is reuse, or it is not."""
        try:
            if failure is None:
                state.progress = Progress.CONFIRMED
                self._ledger.confirm(
                    state.key,
                    materialised_tokens=plan.reused_tokens,
                    exact_tokens=state.computed_tokens,
                )
            else:
                state.progress = Progress.FAILED
                self._ledger.decline(state.key, DeclineReason.MATERIALISATION_FAILED, failure)
        except PlanError as error:
            self._audit.event("ledger_refused", state.key, detail=str(error))
            return
        blocks = (plan.end - state.computed_tokens) // self._block_size
        self._audit.event(
            "materialized",
            state.key,
            materialized=0 if failure else blocks,
            materialized_tokens=0 if failure else plan.reused_tokens,
            layers=layers,
            requires_rope_correction=any(span.delta for span in plan.copies),
            reason=failure,
            policy=plan.policy,
        )

    def ended(self, state: RequestState) -> None:
        """A request ends for which nothing was loaded."""
        try:
            if state.progress is Progress.OFFERED:
                self._ledger.decline(
                    state.key, DeclineReason.CANCELLED, "ended before it was loaded"
                )
            else:
                self._ledger.settle_cold(state.key, exact_tokens=state.computed_tokens)
        except PlanError:  # never planned for
            self._ledger.exact(
                state.key, prompt_tokens=len(state.tokens), exact_tokens=state.computed_tokens
            )
