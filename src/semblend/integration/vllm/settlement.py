"""What really happened to a request: into the ledger, the audit stream and the counters."""

from __future__ import annotations

from semblend.core.errors import PlanError
from semblend.core.ledger import Ledger
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.integration.accounts import settle_unreused
from semblend.integration.audit import AuditStream
from semblend.integration.vllm.metadata import LoadFailure
from semblend.integration.vllm.request_state import Progress, RequestState
from semblend.integration.vllm.stats import SemBlendStats


class Settlements:
    """Settles every request exactly once; only the workers' word makes reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, stats: SemBlendStats) -> None:
        self._ledger = ledger
        self._audit = audit
        self._stats = stats

    def confirmed(self, state: RequestState, *, layers: int) -> None:
        """Every rank put this request's spans in place."""
        again = state.resumes or state.progress is Progress.CONFIRMED
        state.progress = Progress.CONFIRMED
        plan = state.plan
        if again or plan is None:
            return
        try:
            self._ledger.confirm(
                state.request_id,
                materialised_tokens=state.supplied_tokens,
                exact_tokens=state.exact_tokens,
                recomputed_tokens=state.recomputed_tokens,
            )
        except Exception as error:  # an account that does not add up must not stop the engine
            self._refused(state, DeclineReason.INTERNAL_ERROR, f"not settled: {error!r}")
            return
        self._audit.materialised(
            state.request_id,
            donor_id=",".join(plan.donor_ids),
            tokens=state.supplied_tokens,
            layers=layers,
            hole_tokens=state.hole_tokens,
            recomputed_tokens=state.recomputed_tokens,
            pieces=len(plan.copies),
            requires_rope_correction=any(span.delta for span in plan.copies),
            policy=plan.policy,
        )
        self._stats.settled(
            Outcome.MATERIALISED,
            exact=state.exact_tokens,
            reused=state.supplied_tokens,
            recomputed=state.recomputed_tokens,
            prompt=len(state.tokens),
        )

    def failed(self, state: RequestState, failure: LoadFailure) -> None:
        """A load did not happen; its blocks were reported and are computed exactly."""
        if state.progress is Progress.FAILED:
            return
        state.progress = Progress.FAILED
        reason = DeclineReason(failure.reason)
        state.decline(reason, failure.detail)
        self._audit.failed(
            state.request_id,
            reason=reason.value,
            detail=failure.detail,
            blocks=state.claimed_blocks,
        )
        self._decline(state, reason, failure.detail)
        self._stats.count("load_failures")

    def ended(self, state: RequestState) -> None:
        """A request that was neither confirmed nor failed ends: it ran without reuse."""
        if state.progress in (Progress.CONFIRMED, Progress.FAILED):
            return
        if state.progress is Progress.ADMITTED:
            # Aborted before the workers answered: planned, never confirmed.
            self._decline(state, DeclineReason.CANCELLED, "ended before its load was confirmed")
            return
        settled = settle_unreused(
            self._ledger,
            state.request_id,
            prompt_tokens=len(state.tokens),
            exact_tokens=state.exact_tokens,
            reason=state.reason,
            detail=state.detail,
        )
        self._stats.settled(
            settled.outcome, exact=state.exact_tokens, prompt=len(state.tokens), reason=state.reason
        )

    def _decline(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        if state.resumes:
            return  # settled before it was preempted
        try:
            self._ledger.decline(state.request_id, reason, detail, exact_tokens=state.exact_tokens)
        except PlanError:  # settled already, or never planned for
            pass
        except Exception:
            self._refused(state, reason, detail)
        self._stats.settled(
            reason.outcome, exact=state.exact_tokens, prompt=len(state.tokens), reason=reason
        )

    def _refused(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """The ledger did not take a settlement: the request ran, and nothing is claimed for it."""
        self._audit.event("ledger_refused", state.request_id, detail=detail)
        self._ledger.refused(
            state.request_id,
            reason,
            detail,
            prompt_tokens=len(state.tokens),
            exact_tokens=state.exact_tokens,
        )
