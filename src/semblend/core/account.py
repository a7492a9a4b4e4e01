"""One request's account: it follows what happens and is settled once.

Bookkeeping must never stop an engine, so nothing here raises. If the ledger refuses a settlement,
the request still gets one, but only a settlement the ledger accepted claims reuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason, Outcome, outcome_of
from semblend.core.plan import Plan

logger = logging.getLogger("semblend.account")

Listener = Callable[[Settlement], None]
"""Called with each settlement. Exceptions are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What an engine loaded for a request, in prompt tokens."""

    reused_tokens: int
    recomputed_tokens: int = 0
    """Tokens inside spans that were computed anyway."""
    hole_tokens: int = 0
    """Tokens between spans."""
    donor_ids: tuple[str, ...] = ()
    policy: str = "none"

    @classmethod
    def of(cls, plan: Plan) -> Reuse:
        """The reuse of a plan that was executed unchanged."""
        return cls(
            reused_tokens=plan.reused_tokens,
            recomputed_tokens=plan.recomputed_tokens,
            hole_tokens=plan.hole_tokens,
            donor_ids=plan.donor_ids,
            policy=plan.policy,
        )


def _nobody(_: Settlement) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Opens accounts in one ledger."""

    ledger: Ledger
    settled: Listener = _nobody
    """Called once per account, for counters."""
    refused: Listener = _nobody
    """Called first if the ledger refused the settlement and a substitute is used."""

    def open(self, request_id: str, *, prompt_tokens: int) -> Account:
        """Open the account of a request that has arrived."""
        return Account(self, request_id, prompt_tokens)


class Account:
    """Follows one request to its settlement.

    Requests can come back after settlement (preempted, retracted, looked up again). Later events
    change what :meth:`report` says and nothing else.
    """

    __slots__ = (
        "_books",
        "_settlement",
        "continued_tokens",
        "detail",
        "exact_tokens",
        "prompt_tokens",
        "reason",
        "request_id",
    )

    def __init__(self, books: Accounts, request_id: str, prompt_tokens: int) -> None:
        self._books = books
        self._settlement: Settlement | None = None
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.exact_tokens = 0
        """Tokens served by the engine's own exact prefix cache."""
        self.continued_tokens = 0
        """Tokens with approximate K/V from the request's own chain."""
        self.reason: DeclineReason | None = None
        """Why the request is computed, as far as known."""
        self.detail = ""

    @property
    def is_settled(self) -> bool:
        """Whether the ledger entry is final."""
        return self._settlement is not None

    @property
    def settlement(self) -> Settlement | None:
        """How the request ended, or None while it runs."""
        return self._settlement

    def decline(self, reason: DeclineReason | None, detail: str = "") -> None:
        """Note why this request is computed, unless something else happens to it later."""
        self.reason, self.detail = reason, detail

    def claimed(self, plan: Plan) -> None:
        """Note that this plan will be executed. It replaces earlier plans."""
        if self.is_settled:
            return
        try:
            self._books.ledger.open(self.request_id, plan)
        except Exception:
            logger.warning("request %s: could not record its plan", self.request_id, exc_info=True)

    def confirmed(self, reuse: Reuse) -> bool:
        """Record that the engine loaded K/V. Returns whether the ledger accepted it for the first
        time.
        """
        if self.is_settled:
            return False
        settlement = self._settle(
            lambda: self._books.ledger.confirm(
                self.request_id,
                materialised_tokens=reuse.reused_tokens,
                exact_tokens=self.exact_tokens,
                continued_tokens=self.continued_tokens,
                recomputed_tokens=reuse.recomputed_tokens,
            ),
            otherwise=None,
        )
        return settlement.reason is None

    def failed(self, reason: DeclineReason, detail: str = "") -> None:
        """Record that the planned or claimed reuse did not happen and the tokens are computed."""
        self.decline(reason, detail)
        self.ended()

    def ended(self) -> None:
        """Close the request. Without confirmed reuse it was computed, for the last reason noted."""
        if not self.is_settled:
            self._settle(
                lambda: self._books.ledger.computed(
                    self.request_id,
                    self.reason,
                    self.detail,
                    prompt_tokens=self.prompt_tokens,
                    exact_tokens=self._exact_tokens,
                    continued_tokens=self.continued_tokens,
                ),
                otherwise=self.reason,
            )

    def outcome(self, reuse: Reuse | None) -> Outcome:
        """The outcome to report with this reuse."""
        reused = 0 if reuse is None else reuse.reused_tokens
        return outcome_of(
            self.reason,
            reused_tokens=reused,
            exact_tokens=self.exact_tokens,
            continued_tokens=self.continued_tokens,
        )

    def report(
        self, reuse: Reuse | None, *, approximate: bool, certified: bool, **notes: Any
    ) -> dict[str, Any]:
        """Build the reuse section of the response.

        Parameters
        ----------
        reuse
            What the engine confirmed, or None.
        approximate
            Whether any of that K/V was computed after a different prefix.
        certified
            Whether a certificate covers the policy.
        """
        said = Reuse(reused_tokens=0) if reuse is None else reuse
        body: dict[str, Any] = {
            "outcome": self.outcome(reuse).value,
            "prompt_tokens": self.prompt_tokens,
            "exact_tokens": self.exact_tokens,
            "continued_tokens": self.continued_tokens,
            "reused_tokens": said.reused_tokens,
            "hole_tokens": said.hole_tokens,
            "recomputed_tokens": said.recomputed_tokens,
            "approximate": approximate and (reuse is not None or self.continued_tokens > 0),
        }
        if reuse is not None:
            body |= {"donor_ids": list(reuse.donor_ids), "policy": reuse.policy}
            body["certified"] = certified
        elif self.reason is not None:
            body["reason"] = self.reason.value
            if self.detail:
                body["detail"] = self.detail
        return body | notes

    @property
    def _exact_tokens(self) -> int:
        # An engine's cache may hold more of a request than its prompt.
        return min(self.exact_tokens, self.prompt_tokens)

    def _settle(
        self, write: Callable[[], Settlement], *, otherwise: DeclineReason | None
    ) -> Settlement:
        try:
            settlement = write()
        except Exception as error:
            settlement = self._written_off(error, otherwise)
        self._settlement = settlement
        self._tell(self._books.settled, settlement)
        return settlement

    def _written_off(self, error: Exception, known: DeclineReason | None) -> Settlement:
        """Settle a request whose settlement the ledger refused: it ran, and no reuse is claimed."""
        logger.warning("request %s: the ledger refused its settlement: %r", self.request_id, error)
        reason = known or DeclineReason.INTERNAL_ERROR
        settlement = Settlement(
            request_id=self.request_id,
            outcome=outcome_of(reason, exact_tokens=self._exact_tokens),
            prompt_tokens=self.prompt_tokens,
            exact_tokens=self._exact_tokens,
            reason=reason,
            detail=self.detail if known else f"not settled: {error!r}",
        )
        try:
            self._books.ledger.write_off(settlement)
        except Exception:
            logger.warning("request %s: missing from the ledger", self.request_id, exc_info=True)
        self._tell(self._books.refused, settlement)
        return settlement

    def _tell(self, listener: Listener, settlement: Settlement) -> None:
        try:
            listener(settlement)
        except Exception:
            logger.warning("request %s: not counted", self.request_id, exc_info=True)
