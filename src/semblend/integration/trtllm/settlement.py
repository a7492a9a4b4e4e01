"""What really happened to a request: into its account and the audit stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from semblend.core.account import Accounts, Reuse
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import AuditStream
from semblend.integration.trtllm.request_state import Progress, RequestState

logger = logging.getLogger("semblend.trtllm")


class Settlements:
    """Passes on the ranks' word, which alone makes reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, block_size: int) -> None:
        self._audit = audit
        self._block_size = block_size
        self.accounts = Accounts(ledger=ledger, refused=self._refused)

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
        if failure is None:
            state.progress = Progress.CONFIRMED
            if not state.account.confirmed(Reuse.of(plan)):
                return
        else:
            state.progress = Progress.FAILED
            state.account.failed(DeclineReason.MATERIALISATION_FAILED, failure)
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
        if state.progress is Progress.OFFERED:
            state.account.failed(DeclineReason.CANCELLED, "ended before it was loaded")
        state.account.ended()

    def _refused(self, settlement: Settlement) -> None:
        self._audit.event("ledger_refused", settlement.request_id, detail=settlement.detail)


@contextlib.contextmanager
def beside(what: str) -> Iterator[None]:
    """The engine's step goes on, and the other answers are heard, whatever one of them breaks."""
    try:
        yield
    except Exception:
        logger.warning("SemBlend could not settle %s", what, exc_info=True)
