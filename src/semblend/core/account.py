"""One request's account: told what happens as it happens, written down once.

Bookkeeping must never stop an engine: nothing in here raises. Whatever the ledger says to a
settlement, the request has one afterwards, and only one that the ledger took claims reuse.
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
"""Told of a settlement; what it raises is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What an engine has put in place for a request, in tokens of its prompt."""

    reused_tokens: int
    recomputed_tokens: int = 0
    """Tokens inside spans that were computed anyway."""
    hole_tokens: int = 0
    """Tokens between spans."""
    donor_ids: tuple[str, ...] = ()
    policy: str = "none"

    @classmethod
    def of(cls, plan: Plan) -> Reuse:
        """A plan that was carried out as it stands."""
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
    """Told once of every account: counters."""
    refused: Listener = _nobody
    """Told, before that, when the ledger refused the settlement and another stands for it."""

    def open(self, request_id: str, *, prompt_tokens: int) -> Account:
        """The account of a request that has arrived."""
        return Account(self, request_id, prompt_tokens)


class Account:
    """What becomes of one request.

    Requests come back (preempted, retracted, asked about again): what is told after the
    settlement changes what :meth:`report` says and nothing else.
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
        """Tokens that the engine's own exact prefix cache serves."""
        self.continued_tokens = 0
        """Tokens whose approximate K/V is the request's own chain's."""
        self.reason: DeclineReason | None = None
        """Why it is computed, so far."""
        self.detail = ""

    @property
    def is_settled(self) -> bool:
        """Whether the request stands in the ledger for good."""
        return self._settlement is not None

    @property
    def settlement(self) -> Settlement | None:
        """How the request ended; None while it has not."""
        return self._settlement

    def decline(self, reason: DeclineReason | None, detail: str = "") -> None:
        """Note why this request is computed, unless something else happens to it yet."""
        self.reason, self.detail = reason, detail

    def claimed(self, plan: Plan) -> None:
        """This plan is to be carried out; it takes the place of what was planned before."""
        if self.is_settled:
            return
        try:
            self._books.ledger.open(self.request_id, plan)
        except Exception:
            logger.warning("request %s: its plan was not noted", self.request_id, exc_info=True)

    def confirmed(self, reuse: Reuse) -> bool:
        """The engine has put K/V in place; whether the ledger took it, for the first time."""
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
        """What was planned or claimed was not carried out; the tokens are computed."""
        self.decline(reason, detail)
        self.ended()

    def ended(self) -> None:
        """The request ends. Without confirmed reuse it was computed, for the reason last noted."""
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
        """What the response calls it, with this reuse in place."""
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
        """What the response says was reused.

        Parameters
        ----------
        reuse
            What is in place by the engine's own word; None where it gave none.
        approximate
            Whether any of that K/V was computed behind another prefix.
        certified
            Whether a certificate stands behind the policy.
        """
        said = Reuse(reused_tokens=0) if reuse is None else reuse
        body: dict[str, Any] = {
            "outcome": self.outcome(reuse).value,
            "prompt_tokens": self.prompt_tokens,
            "exact_tokens": self.exact_tokens,
            "reused_tokens": said.reused_tokens,
            "hole_tokens": said.hole_tokens,
            "recomputed_tokens": said.recomputed_tokens,
            "approximate": reuse is not None and approximate,
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
        # An engine's cache may know more of a request than its prompt.
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
        """The ledger refused a settlement: the request ran, and nothing is claimed for it."""
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
            logger.warning("request %s: not in the ledger", self.request_id, exc_info=True)
        self._tell(self._books.refused, settlement)
        return settlement

    def _tell(self, listener: Listener, settlement: Settlement) -> None:
        try:
            listener(settlement)
        except Exception:
            logger.warning("request %s: not counted", self.request_id, exc_info=True)
