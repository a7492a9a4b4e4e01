"""What really happened to a request: into its account and the audit stream."""

from __future__ import annotations

from semblend.core.account import Reuse
from semblend.core.ledger import Ledger
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import AuditStream
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.stats import Stats
from semblend.integration.trtllm.request_state import State


class RankSettlements(Settlements):
    """Passes on the ranks' word, which alone makes reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, block_size: int) -> None:
        super().__init__(ledger=ledger, audit=audit, stats=Stats())
        self._block_size = block_size

    def looked_up(self, state: State, plan: Plan | None, offered: int) -> None:
        """What was found for a request, and what of it was offered: evidence, not reuse."""
        reason = state.arrival.refusal
        if reason is None and not state.namespace.is_complete:
            reason = DeclineReason.INCOMPLETE_NAMESPACE.value
        if reason is None and offered == 0:
            reason = plan.reason.value if plan and plan.reason else "nothing_to_offer"
        self._audit.event(
            "lookup",
            state.request_id,
            found=bool(plan is not None and plan.spans),
            similarity=None if plan is None else plan.evidence.similarity,
            reuse_ratio=0.0 if plan is None else plan.reused_tokens / max(1, len(state.tokens)),
            rejection_reason=reason,
            kind="ladder_rung" if state.ladder_id is not None else "exact_prefix",
            num_new_matched_tokens=offered,
            num_computed_tokens=state.exact_tokens,
            prompt_tokens=len(state.tokens),
        )

    def answered(self, state: State, plan: Plan, failure: str | None, *, layers: int) -> None:
        """Every rank has answered a load: it is reuse, or it is not."""
        if failure is None:
            state.loaded()
            if not state.account.confirmed(Reuse.of(plan)):
                return
        else:
            state.failed()
            state.account.failed(DeclineReason.MATERIALISATION_FAILED, failure)
        blocks = (plan.end - state.exact_tokens) // self._block_size
        self._audit.event(
            "materialized",
            state.request_id,
            materialized=0 if failure else blocks,
            materialized_tokens=0 if failure else plan.reused_tokens,
            layers=layers,
            requires_rope_correction=any(span.delta for span in plan.copies),
            reason=failure,
            policy=plan.policy,
        )
