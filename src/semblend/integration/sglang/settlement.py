"""What really happened to a request: into its account and the log."""

from __future__ import annotations

from semblend.core.account import Accounts, Reuse
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason
from semblend.integration.sglang.log_lines import BackendLog
from semblend.integration.sglang.request_state import Progress, RequestState
from semblend.integration.sglang.stats import BackendStats


class Settlements:
    """Passes on how passes ended; only a finished one makes reuse."""

    def __init__(self, *, ledger: Ledger, log: BackendLog, stats: BackendStats) -> None:
        self._log = log
        self._stats = stats
        self.accounts = Accounts(ledger=ledger, settled=stats.settled, refused=self._refused)

    def confirmed(self, state: RequestState, *, layers: int) -> None:
        """The region is in place."""
        state.progress = Progress.CONFIRMED
        plan = state.load.plan if state.load is not None else None
        if plan is None:
            return
        state.account.exact_tokens = plan.exact_tokens
        if state.account.confirmed(Reuse.of(plan)):
            self._log.materialised(state.request_id, plan, layers=layers)

    def failed(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """A load or a pass failed and the prompt is computed exactly."""
        state.progress = Progress.FAILED
        plan = state.plan
        tokens = plan.end - plan.exact_tokens if plan is not None else 0
        self._log.failed(state.request_id, reason=reason.value, detail=detail, tokens=tokens)
        self._stats.count("load_failures")
        state.account.failed(reason, detail)

    def declined(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """A plan was not carried out, and nothing had been loaded."""
        self._log.declined(state.request_id, reason=reason.value, detail=detail)
        state.account.failed(reason, detail)

    def ended(self, state: RequestState) -> None:
        """A request has ended; one that was loaded and never ran was aborted."""
        account = state.account
        if state.progress is Progress.LOADED and not account.is_settled:
            account.failed(DeclineReason.CANCELLED, "ended before its pass")
        account.ended()

    def _refused(self, settlement: Settlement) -> None:
        reason = settlement.reason or DeclineReason.INTERNAL_ERROR
        self._log.declined(settlement.request_id, reason=reason.value, detail=settlement.detail)
