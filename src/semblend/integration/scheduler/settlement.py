"""What really happened to a request: into its account, the audit stream and the counters."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from semblend.core.account import Accounts
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.scheduler.orders import LoadFailure
from semblend.integration.scheduler.request import Request, Stage
from semblend.integration.stats import Stats

logger = logging.getLogger("semblend.adapter")


class Settlements:
    """Passes on the workers' confirmation; only that counts as reuse."""

    def __init__(self, *, ledger: Ledger, audit: AuditStream, stats: Stats) -> None:
        self._audit = audit
        self._stats = stats
        self.accounts = Accounts(ledger=ledger, settled=stats.settled, refused=self._refused)

    def confirmed(self, request: Request[Any], *, layers: int) -> bool:
        """Every rank put this request's spans in place; whether it is reuse for the first time."""
        plan, reuse = request.plan, request.reuse
        if plan is None or reuse is None or not request.account.confirmed(reuse):
            return False
        self._audit.materialised(
            request.request_id,
            donor_id=",".join(plan.donor_ids),
            tokens=reuse.reused_tokens,
            layers=layers,
            hole_tokens=reuse.hole_tokens,
            recomputed_tokens=reuse.recomputed_tokens,
            pieces=len(plan.copies),
            requires_rope_correction=any(span.delta for span in plan.copies),
            policy=plan.policy,
        )
        return True

    def failed(self, request: Request[Any], failure: LoadFailure, *, blocks: int) -> None:
        """A load did not happen; its tokens are computed exactly."""
        reason = DeclineReason(failure.reason)
        self._audit.failed(
            request.request_id, reason=reason.value, detail=failure.detail, blocks=blocks
        )
        self._stats.count("load_failures")
        request.account.failed(reason, failure.detail)

    def declined(self, request: Request[Any], reason: DeclineReason, detail: str) -> None:
        """A plan came to nothing, and nothing has failed."""
        self._audit.declined(
            "runtime_materialization_declined",
            request.request_id,
            reason=reason.value,
            detail=detail,
        )
        request.account.failed(reason, detail)

    def ended(self, request: Request[Any]) -> None:
        """A request ends; one that waited for the workers' answer was aborted."""
        account = request.account
        if request.stage is Stage.LOADING and not account.is_settled:
            account.failed(DeclineReason.CANCELLED, "ended before its load was confirmed")
        account.ended()

    def _refused(self, settlement: Settlement) -> None:
        self._audit.event("ledger_refused", settlement.request_id, detail=settlement.detail)


@contextlib.contextmanager
def beside(what: str) -> Iterator[None]:
    """Whatever one of them breaks, the engine's step and the others continue."""
    try:
        yield
    except Exception:
        logger.warning("SemBlend could not %s", what, exc_info=True)
