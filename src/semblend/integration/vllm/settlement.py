"""What really happened to a request: into its account and the audit stream."""

from __future__ import annotations

from semblend.core.account import Accounts
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason
from semblend.integration.audit import AuditStream
from semblend.integration.vllm.metadata import LoadFailure
from semblend.integration.vllm.request_state import Progress, RequestState
from semblend.integration.vllm.stats import SemBlendStats


class Settlements:
    """Passes on the workers' word, which alone makes reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, stats: SemBlendStats) -> None:
        self._audit = audit
        self._stats = stats
        self.accounts = Accounts(ledger=ledger, settled=stats.settled, refused=self._refused)

    def confirmed(self, state: RequestState, *, layers: int) -> None:
        """Every rank put this request's spans in place."""
        state.progress = Progress.CONFIRMED
        plan, reuse = state.plan, state.reuse
        if plan is None or reuse is None or not state.account.confirmed(reuse):
            return
        self._audit.materialised(
            state.request_id,
            donor_id=",".join(plan.donor_ids),
            tokens=reuse.reused_tokens,
            layers=layers,
            hole_tokens=reuse.hole_tokens,
            recomputed_tokens=reuse.recomputed_tokens,
            pieces=len(plan.copies),
            requires_rope_correction=any(span.delta for span in plan.copies),
            policy=plan.policy,
        )

    def failed(self, state: RequestState, failure: LoadFailure) -> None:
        """A load did not happen; its tokens are computed exactly."""
        if state.progress is Progress.FAILED:
            return
        state.progress = Progress.FAILED
        reason = DeclineReason(failure.reason)
        self._audit.failed(
            state.request_id,
            reason=reason.value,
            detail=failure.detail,
            blocks=state.claimed_blocks,
        )
        self._stats.count("load_failures")
        state.account.failed(reason, failure.detail)

    def ended(self, state: RequestState) -> None:
        """A request ends; one that waited for the workers' answer was aborted."""
        account = state.account
        if state.progress is Progress.ADMITTED and not account.is_settled:
            account.failed(DeclineReason.CANCELLED, "ended before its load was confirmed")
        account.ended()

    def _refused(self, settlement: Settlement) -> None:
        self._audit.event("ledger_refused", settlement.request_id, detail=settlement.detail)
