"""Claims and loads in engines that load at the moment they admit a request.

Such an engine asks about every waiting prompt at every step (`claim`) and has what was claimed
loaded when it admits the request (`load`); its own forward of that step follows. Donors' K/V stays
in its own cache. Engines that allocate first and wait for loads have `Claims` instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from semblend.core.errors import CapacityError, DonorError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray, TokenIds, as_token_array
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.loaded_model import model_identity
from semblend.integration.probing import pass_tokens
from semblend.integration.provider import DonorsLostError, SemBlendProvider
from semblend.integration.scheduler.claims import ASK_AGAIN, NOTHING
from semblend.integration.scheduler.orders import LoadFailure
from semblend.integration.scheduler.request import Request, Stage
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.stats import Stats

logger = logging.getLogger("semblend.adapter")

_ADVERTISED = "semantic_span_load_advertised"
_REPLANS = 8
"""Waiting requests planned again between two forwards because the set of donors changed."""
_RETRIES = 2
"""Times a request is planned again because donors were gone, before it is computed cold."""


class Waiting(Protocol):
    """What is kept of a request between two claims; the handle of its arrival."""

    tokens: TokenArray
    """What the engine last asked about: the prompt and, after a retraction, what was generated."""
    losses: int
    """Times a donor turned out to be gone."""


class Admissions:
    """Decides for one engine; owns the budgets of the step being scheduled."""

    def __init__(
        self,
        *,
        engine: str,
        provider: SemBlendProvider,
        settlements: Settlements,
        audit: AuditStream,
        stats: Stats,
        hole_budget: int,
        failures_before_off: int,
        standing: str,
    ) -> None:
        """Start with whole budgets.

        Parameters
        ----------
        hole_budget
            Tokens our own passes may compute before one forward of the engine.
        failures_before_off
            Failed loads or passes in a row after which nothing is loaded any more.
        standing
            What kind of loads these are: certified or experimental.
        """
        self.hole_budget = hole_budget
        self.failures = 0
        """Loads and passes that failed, in a row."""
        self._engine = engine
        self._provider = provider
        self._settlements = settlements
        self._audit = audit
        self._stats = stats
        self._failures_before_off = failures_before_off
        self._standing = standing
        self._loaded: dict[str, int] = {}
        """Tokens of passes for requests that are loaded and wait for this step's forward."""
        self._replans_left = _REPLANS

    @property
    def works(self) -> bool:
        """Whether anything is loaded at present."""
        return self.failures < self._failures_before_off

    # -- claiming --------------------------------------------------------------------

    def claim(
        self,
        request: Request[Waiting],
        tokens: TokenIds,
        exact_tokens: int,
        *,
        most: int,
        may_load: bool,
        continued_tokens: int = 0,
    ) -> Plan | None:
        """What can be loaded behind the engine's own prefix hit. Idempotent.

        Parameters
        ----------
        most
            No more than so many tokens of the prompt may be present.
        may_load
            Whether the engine could carry a plan out.
        continued_tokens
            Tokens behind the exact prefix that the request's own chain has.
        """
        request.account.exact_tokens = exact_tokens
        if request.arrival.refusal is not None:
            request.decline(DeclineReason.UNSUPPORTED, request.arrival.refusal)
            return None
        if not request.arrival.may_reuse:
            request.decline(DeclineReason.DISABLED, "the request says reuse: false")
            return None
        if request.stage is Stage.FAILED:
            return None
        request.withdraw()  # it is asked anew
        plan = self._planned(request, tokens, continued_tokens)
        if not plan.executable or plan.end > most:
            if plan.reason is not None:
                request.decline(plan.reason, plan.detail)
            if not continued_tokens or exact_tokens + continued_tokens > most:
                return None
            plan = _bare(plan, exact_tokens, continued_tokens)
        if not (self.works and may_load):
            request.decline(DeclineReason.DISABLED, "nothing is loaded at present")
            return None
        first = request.reuse is None
        request.make_claim(plan)
        if first and plan.spans:
            self._audit.advertised(_ADVERTISED, request.request_id, plan, standing=self._standing)
        return plan

    def _planned(self, request: Request[Waiting], tokens: TokenIds, continued_tokens: int) -> Plan:
        """The request's plan, made once for one exact prefix; new donors may improve it."""
        waiting = request.handle
        made_for = len(tokens), request.exact_tokens, continued_tokens
        known = request.plan_for(made_for)
        if known is not None and not self._replans(request, known):
            return known
        started = time.perf_counter()
        if len(waiting.tokens) != len(tokens):
            waiting.tokens = as_token_array(tokens)
        first = request.plan is None and not request.account.is_settled
        generation = self._provider.generation
        plan = self._provider.plan(
            waiting.tokens,
            request.namespace,
            exact_tokens=request.exact_tokens,
            continued_tokens=continued_tokens,
            hole_budget=self.hole_budget,
            policy=request.arrival.policy,
        )
        request.account.claimed(plan)
        request.planned(plan, made_for, generation=generation)
        self._stats.time("lookup", time.perf_counter() - started)
        if first:
            self._audit.looked_up(request.request_id, plan)
        return plan

    def _replans(self, request: Request[Waiting], plan: Plan) -> bool:
        """Whether a waiting request is planned again because donors came or went.

        A long queue is asked about at every step, and donors come with every step: without a
        ration, planning would be quadratic in the queue.
        """
        if request.generation == self._provider.generation or not self._replans_left:
            return False
        if plan.executable and all(map(self._provider.donor, plan.donor_ids)):
            return False
        self._replans_left -= 1
        return True

    # -- loading ---------------------------------------------------------------------

    def load(self, request: Request[Waiting], carry_out: Callable[[Plan], None]) -> int | None:
        """How many tokens were loaded: all that were claimed or none; None means "ask again".

        `carry_out` puts a plan's spans in place. It may raise, and then has left nothing behind.
        """
        plan = request.plan
        if plan is None or request.stage is not Stage.CLAIMED or not self.works:
            return NOTHING
        holes = pass_tokens(plan)
        if self._loaded and sum(self._loaded.values()) + holes > self.hole_budget:
            self._stats.count("waits")
            return ASK_AGAIN
        started = time.perf_counter()
        try:
            carry_out(plan)
            request.admitted()
        except DonorsLostError as error:
            return self._lost(request, error)
        except CapacityError as error:
            self._declined(request, DeclineReason.NO_CAPACITY, str(error))
            return NOTHING
        except DonorError as error:
            self._declined(request, DeclineReason.DONOR_GONE, str(error))
            return NOTHING
        except Exception as error:
            logger.warning("SemBlend could not load for %s", request.request_id, exc_info=True)
            self.ran(well=False)
            blocks = plan.end - plan.exact_tokens
            self._settlements.failed(request, LoadFailure.by(error), blocks=blocks)
            request.failed()
            return NOTHING
        # From here on the request's K/V is approximate: never in a prefix cache, never a donor.
        request.tainted = True
        self._loaded[request.request_id] = holes
        if plan.spans:
            self._audit.materialising(
                request.request_id, donor_id=",".join(plan.donor_ids), tokens=plan.reused_tokens
            )
        self._stats.time("load", time.perf_counter() - started)
        return plan.end - plan.exact_tokens

    def _declined(self, request: Request[Waiting], reason: DeclineReason, detail: str) -> None:
        self._settlements.declined(request, reason, detail)
        request.failed()

    def _lost(self, request: Request[Waiting], error: DonorsLostError) -> int | None:
        for donor_id in error.donor_ids:
            self._provider.forget(donor_id)
        self._stats.count("donors_lost", len(error.donor_ids))
        request.handle.losses += 1
        if request.handle.losses <= _RETRIES:
            # Forgotten donors are not planned with again: other donors may do.
            self._stats.count("waits")
            request.released()
            return ASK_AGAIN
        self._declined(request, DeclineReason.DONOR_GONE, str(error))
        return NOTHING

    # -- the step --------------------------------------------------------------------

    @property
    def awaits_forward(self) -> bool:
        """Whether something was loaded for this step's forward."""
        return bool(self._loaded)

    def no_longer_waits(self, request: Request[Waiting]) -> None:
        """The forward that a load waited for is here, or the request is not in it after all."""
        self._loaded.pop(request.request_id, None)

    def next_step(self) -> None:
        """A forward begins: the next one has its own ration of plans."""
        self._replans_left = _REPLANS

    def ran(self, *, well: bool) -> None:
        """A load or a step's passes ended; too many failures in a row are the end of loading."""
        self.failures = 0 if well else self.failures + 1
        if self.failures == self._failures_before_off:
            logger.error(
                "SemBlend failed %d times in a row; nothing is loaded any more", self.failures
            )

    def ended(self, request: Request[Waiting]) -> None:
        """A request is done."""
        self._settlements.ended(request)
        request.ended()
        self._audit.settled(
            request.account.settlement,
            namespace=model_identity.shown(self._engine, request.namespace),
            tenant=request.namespace.tenant,
        )

    def forget(self) -> None:
        """The engine's cache was emptied."""
        self._loaded.clear()


def _bare(plan: Plan, exact_tokens: int, continued_tokens: int) -> Plan:
    """A plan of which only the chain is left."""
    return Plan(
        namespace=plan.namespace,
        prompt_tokens=plan.prompt_tokens,
        end=exact_tokens + continued_tokens,
        exact_tokens=exact_tokens,
        continued_tokens=continued_tokens,
        evidence=plan.evidence,
    )
