"""What really happened to a request: into the ledger, the log and the counters, once."""

from __future__ import annotations

from semblend.core.errors import PlanError
from semblend.core.ledger import Ledger
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.integration.accounts import settle_unreused
from semblend.integration.sglang.log_lines import BackendLog
from semblend.integration.sglang.request_state import Progress, RequestState
from semblend.integration.sglang.stats import BackendStats


class Settlements:
    """Settles every request exactly once; only a finished pass makes reuse."""

    def __init__(self, *, ledger: Ledger, log: BackendLog, stats: BackendStats) -> None:
        self._ledger = ledger
        self._log = log
        self._stats = stats

    def confirmed(self, state: RequestState, *, layers: int) -> None:
        """The region is in place."""
        state.progress = Progress.CONFIRMED
        plan = state.load.plan if state.load is not None else None
        if plan is None or state.settled:
            return  # retracted and loaded again: counted the first time
        state.settled = True
        try:
            self._ledger.confirm(
                state.request_id,
                materialised_tokens=plan.reused_tokens,
                exact_tokens=plan.exact_tokens,
                recomputed_tokens=plan.recomputed_tokens,
            )
        except Exception as error:  # an account that does not add up must not stop the engine
            self._refused(state, DeclineReason.INTERNAL_ERROR, f"not settled: {error!r}")
            return
        self._log.materialised(state.request_id, plan, layers=layers)
        self._stats.settled(
            Outcome.MATERIALISED,
            prompt=plan.prompt_tokens,
            exact=plan.exact_tokens,
            reused=plan.reused_tokens,
            recomputed=plan.recomputed_tokens,
        )

    def failed(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """A load or a pass failed and the prompt is computed exactly."""
        state.progress = Progress.FAILED
        state.decline(reason, detail)
        plan = state.plan
        tokens = plan.end - plan.exact_tokens if plan is not None else 0
        self._log.failed(state.request_id, reason=reason.value, detail=detail, tokens=tokens)
        self._stats.count("load_failures")
        self._decline(state, reason, detail)

    def declined(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """A plan was not carried out, and nothing had been loaded."""
        state.decline(reason, detail)
        self._log.declined(state.request_id, reason=reason.value, detail=detail)
        self._decline(state, reason, detail)

    def ended(self, state: RequestState, prompt_tokens: int) -> None:
        """A request that was never settled has ended: it ran without reuse."""
        if state.settled:
            return
        if state.progress is Progress.LOADED:
            self._decline(state, DeclineReason.CANCELLED, "ended before its pass")
            return
        state.settled = True
        settled = settle_unreused(
            self._ledger,
            state.request_id,
            prompt_tokens=prompt_tokens,
            exact_tokens=state.exact_tokens,
            reason=state.reason,
            detail=state.detail,
        )
        self._stats.settled(
            settled.outcome, prompt=prompt_tokens, exact=state.exact_tokens, reason=state.reason
        )

    def _decline(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        if state.settled:
            return
        state.settled = True
        try:
            self._ledger.decline(state.request_id, reason, detail, exact_tokens=state.exact_tokens)
        except PlanError:  # never planned for
            pass
        except Exception:
            self._refused(state, reason, detail)
        prompt = 0 if state.tokens is None else len(state.tokens)
        self._stats.settled(
            reason.outcome, prompt=prompt, exact=min(state.exact_tokens, prompt), reason=reason
        )

    def _refused(self, state: RequestState, reason: DeclineReason, detail: str) -> None:
        """The ledger did not take a settlement: the request ran, and nothing is claimed for it."""
        self._log.declined(state.request_id, reason=reason.value, detail=detail)
        prompt = 0 if state.tokens is None else len(state.tokens)
        self._ledger.refused(
            state.request_id,
            reason,
            detail,
            prompt_tokens=prompt,
            exact_tokens=min(state.exact_tokens, prompt),
        )
