"""The ledger: what really happened to every prompt token.

A request is opened with its plan, then settled once, through its
:class:`~semblend.core.account.Account`. Only :meth:`Ledger.confirm`, which an engine calls after
loading donor K/V, counts tokens as materialised. Requests that are dropped without settlement count
as computed: a match is evidence, not a hit.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field, replace

from semblend.core.errors import PlanError
from semblend.core.faults import FaultPoint, fault_point
from semblend.core.outcomes import DeclineReason, Outcome, is_for_discovery, outcome_of
from semblend.core.plan import CostEstimate, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How one request ended. Token counts add up to the prompt."""

    request_id: str
    outcome: Outcome
    prompt_tokens: int
    exact_tokens: int = 0
    continued_tokens: int = 0
    """Tokens with approximate K/V from the request's own chain."""
    materialised_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens inside spans that were computed anyway; part of `computed_tokens`."""
    reusable_tokens: int = 0
    """Tokens not reused only for lack of permission; part of `computed_tokens`."""
    cost: CostEstimate = field(default_factory=CostEstimate)
    """For what was or could have been reused; zero otherwise."""
    donor_ids: tuple[str, ...] = ()
    """Donors of what was or could have been reused."""
    tokens_by_donor: tuple[tuple[str, int], ...] = ()
    """Tokens each donor gave or could have given, as planned."""
    policy: str = "none"
    reason: DeclineReason | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        claimed = self.exact_tokens + self.continued_tokens + self.materialised_tokens
        counts = (
            self.exact_tokens,
            self.continued_tokens,
            self.materialised_tokens,
            self.recomputed_tokens,
            self.reusable_tokens,
        )
        if min(counts) < 0:
            raise PlanError("settlement: token counts are never negative")
        if claimed > self.prompt_tokens:
            raise PlanError(
                f"settlement: {claimed} tokens claimed of a prompt of {self.prompt_tokens}"
            )

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens the engine actually computed."""
        placed = self.exact_tokens + self.continued_tokens
        return self.prompt_tokens - placed - self.materialised_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """A snapshot of all counters."""

    requests: dict[Outcome, int]
    tokens: dict[Outcome, int]
    """Prompt tokens by source: exact_prefix, continued, materialised, cold (computed)."""
    reasons: dict[DeclineReason, int]
    discovered_tokens: int
    """Tokens inside verified runs, whether reused or not. This is evidence."""
    open_requests: int


@dataclass(slots=True)
class Ledger:
    """Counts tokens by outcome. Only an engine's confirmation counts as materialised."""

    recent_limit: int = 256
    open_limit: int = 65_536
    _open: OrderedDict[str, Plan] = field(default_factory=OrderedDict)
    _recent: deque[Settlement] = field(default_factory=deque)
    _requests: Counter[Outcome] = field(default_factory=Counter)
    _tokens: Counter[Outcome] = field(default_factory=Counter)
    _reasons: Counter[DeclineReason] = field(default_factory=Counter)
    _discovered_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, request_id: str, plan: Plan) -> None:
        """Record the plan of `request_id`. A second call replaces it."""
        with self._lock:
            if self._open.pop(request_id, None) is None:
                self._discovered_tokens += plan.evidence.matched_tokens
            self._open[request_id] = plan
            abandoned = (
                self._open.popitem(last=False) if len(self._open) > self.open_limit else None
            )
        if abandoned is not None:
            self._settle(_as_computed(*abandoned))

    @fault_point(FaultPoint.SETTLEMENT)
    def confirm(
        self,
        request_id: str,
        *,
        materialised_tokens: int,
        exact_tokens: int = 0,
        continued_tokens: int = 0,
        recomputed_tokens: int | None = None,
    ) -> Settlement:
        """Record that the engine loaded `materialised_tokens` of donor K/V.

        Raises
        ------
        PlanError
            If the request has no open executable plan, or claims more tokens than planned.
        """
        with self._lock:
            plan = self._open.get(request_id)
            if plan is None or not plan.executable:
                raise PlanError(f"request {request_id!r} has no open executable plan")
            if materialised_tokens > plan.reused_tokens:
                raise PlanError(
                    f"request {request_id!r}: {materialised_tokens} tokens confirmed, "
                    f"{plan.reused_tokens} planned"
                )
            del self._open[request_id]
        settlement = Settlement(
            request_id=request_id,
            outcome=outcome_of(
                None,
                reused_tokens=materialised_tokens,
                exact_tokens=exact_tokens,
                continued_tokens=continued_tokens,
            ),
            prompt_tokens=plan.prompt_tokens,
            exact_tokens=exact_tokens,
            continued_tokens=continued_tokens,
            materialised_tokens=materialised_tokens,
            recomputed_tokens=(
                plan.recomputed_tokens if recomputed_tokens is None else recomputed_tokens
            ),
            cost=plan.cost,
            donor_ids=plan.donor_ids,
            tokens_by_donor=plan.tokens_by_donor,
            policy=plan.policy,
        )
        self._settle(settlement)
        return settlement

    @fault_point(FaultPoint.SETTLEMENT)
    def computed(
        self,
        request_id: str,
        reason: DeclineReason | None = None,
        detail: str = "",
        *,
        prompt_tokens: int | None = None,
        exact_tokens: int = 0,
        continued_tokens: int = 0,
    ) -> Settlement:
        """Record that the request ran without donors, for this reason or its plan's.

        `prompt_tokens` is needed for requests that were never opened.

        Raises
        ------
        PlanError
            If the request is not open and its length is unknown.
        """
        with self._lock:
            plan = self._open.pop(request_id, None)
        settlement = _as_computed(
            request_id,
            plan,
            reason,
            detail,
            prompt_tokens=prompt_tokens,
            exact_tokens=exact_tokens,
            continued_tokens=continued_tokens,
        )
        self._settle(settlement)
        return settlement

    def write_off(self, settlement: Settlement) -> None:
        """Accept a final settlement, as given, for a request whose own settlement raised."""
        with self._lock:
            self._open.pop(settlement.request_id, None)
        self._settle(settlement)

    def totals(self) -> LedgerTotals:
        """Everything counted so far."""
        with self._lock:
            return LedgerTotals(
                requests={outcome: self._requests[outcome] for outcome in Outcome},
                tokens={outcome: self._tokens[outcome] for outcome in Outcome},
                reasons=dict(self._reasons),
                discovered_tokens=self._discovered_tokens,
                open_requests=len(self._open),
            )

    def recent(self) -> tuple[Settlement, ...]:
        """The last settlements, oldest first."""
        with self._lock:
            return tuple(self._recent)

    def _settle(self, settlement: Settlement) -> None:
        with self._lock:
            self._requests[settlement.outcome] += 1
            self._tokens[Outcome.EXACT_PREFIX] += settlement.exact_tokens
            self._tokens[Outcome.CONTINUED] += settlement.continued_tokens
            self._tokens[Outcome.MATERIALISED] += settlement.materialised_tokens
            self._tokens[Outcome.COLD] += settlement.computed_tokens
            if settlement.reason is not None:
                self._reasons[settlement.reason] += 1
            self._recent.append(settlement)
            while len(self._recent) > self.recent_limit:
                self._recent.popleft()


def _as_computed(
    request_id: str,
    plan: Plan | None,
    reason: DeclineReason | None = None,
    detail: str = "",
    *,
    prompt_tokens: int | None = None,
    exact_tokens: int = 0,
    continued_tokens: int = 0,
) -> Settlement:
    if plan is not None:
        prompt_tokens = plan.prompt_tokens if prompt_tokens is None else prompt_tokens
        if reason is None:
            reason, detail = plan.reason, plan.detail
    if prompt_tokens is None:
        raise PlanError(f"request {request_id!r} is not open")
    settlement = Settlement(
        request_id=request_id,
        outcome=outcome_of(reason, exact_tokens=exact_tokens, continued_tokens=continued_tokens),
        prompt_tokens=prompt_tokens,
        exact_tokens=exact_tokens,
        continued_tokens=continued_tokens,
        reason=reason,
        detail=detail,
    )
    if plan is None or not _only_permission_is_missing(plan, reason):
        return settlement
    return replace(
        settlement,
        # The exact prefix may have grown since the plan was made.
        reusable_tokens=min(plan.reused_tokens, prompt_tokens - exact_tokens),
        cost=plan.cost,
        donor_ids=plan.donor_ids,
        tokens_by_donor=plan.tokens_by_donor,
        policy=plan.policy,
    )


def _only_permission_is_missing(plan: Plan, reason: DeclineReason | None) -> bool:
    """Whether the plan passed every gate of worth. Those are checked before permission."""
    worth_it = plan.executable or is_for_discovery(plan.reason)
    return worth_it and is_for_discovery(reason)
