"""The shared side where an offer stands once it is made, and the ranks answer late.

Such an engine cannot be told that a load failed, so donors stay on the ranks (`LeaderRoom`) until
every rank has answered the load they were offered for, also behind the request's end. What the
ranks did comes back through a link and is looked at whenever the engine calls (`settle`).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from semblend.core.errors import PlanError, SemBlendError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.ladder import split_salt
from semblend.integration.ladder_desk import LadderQuestion, Ladders, deadline
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.scheduler.orders import WorkerReport
from semblend.integration.scheduler.port import PlainRequest, SchedulerPort
from semblend.integration.scheduler.rank_room import LeaderRoom
from semblend.integration.scheduler.request import Request, Stage
from semblend.integration.scheduler.settlement import beside
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.scheduler.staged import DeskRungs
from semblend.integration.scheduler.worker_link import WorkerLink

logger = logging.getLogger("semblend.adapter")


class OfferedRequest(PlainRequest):
    """A request by its name in orders and answers, and what stands of its offer."""

    __slots__ = ("block_ids", "has_ended", "name", "offered", "ordered")

    def __init__(self, name: str) -> None:
        self.name = name
        self.block_ids: tuple[int, ...] = ()
        """The prompt's blocks, once they are allocated."""
        self.offered = 0
        """Tokens the engine was told that it need not compute."""
        self.ordered = False
        """Whether their load was ordered."""
        self.has_ended = False

    def make_private(self, first_approximate_token: int) -> None:
        """Not possible here: what is loaded is published as exact K/V under the salt."""
        raise PlanError(f"request {self.name}: approximate K/V for an ordinary request")


Offered = TypeVar("Offered", bound=OfferedRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliance(Generic[Offered]):
    """An offer, or a load, that donors must stay for until every rank has answered."""

    request: Request[Offered]
    plan: Plan


class LeaderSide(Generic[Offered]):
    """One lock for the engine's thread and others that ask: ladder clients."""

    def __init__(
        self,
        setup: SchedulerSetup,
        port: SchedulerPort[Offered, Offered],
        *,
        link: WorkerLink,
        ladders: Ladders,
        host_donor_bytes: int,
        rewrite: PlanRewriter | None = None,
    ) -> None:
        self.room = LeaderRoom(host_donor_bytes, lambda: link.token_bytes)
        self.ladders = ladders
        self.shared = SchedulerSide(
            setup, port, rewrite=rewrite, rungs=DeskRungs(ladders), room=self.room
        )
        self.planner, self.audit = self.shared.planner, self.shared.audit
        self.relied_on: dict[str, Reliance[Offered]] = {}
        self._link = link
        self._lock = threading.RLock()
        self._held: set[str] = set()
        """Requests that have ended and whose blocks the engine keeps for their capture."""

    # -- offers ------------------------------------------------------------------------

    def offer(self, request: Request[Offered], computed_tokens: int) -> int:
        """Tokens of a claim that such an engine can take: whole blocks behind its own prefix.

        Their donors stay until the load is answered. What cannot be taken is withdrawn.
        """
        claim = request.claim
        if request.stage is not Stage.CLAIMED or claim is None:
            return 0
        plan, size = claim.plan, self.shared.setup.block_size
        contiguous = plan.copies and plan.copies[0].target_start == computed_tokens
        if computed_tokens % size or plan.end % size or plan.holes or not contiguous:
            request.decline(DeclineReason.NOT_WORTH_IT, "not whole blocks behind the prefix")
        elif plan.end >= len(request.tokens):
            request.decline(DeclineReason.NOT_WORTH_IT, "no token is left to the engine")
        elif not self.room.pin(plan.donor_ids):
            request.decline(DeclineReason.DONOR_GONE)
        else:
            self.relied_on[request.request_id] = Reliance(request=request, plan=plan)
            return plan.end - computed_tokens
        request.withdraw()
        return 0

    def take_no_offer(self, handle: Offered, why: str) -> None:
        """The engine is told that nothing is supplied: nothing may be loaded either."""
        request = self.shared.requests.get(handle.name)
        if request is not None:
            handle.offered = 0
            self.take_back(handle)
            request.withdraw()
            request.decline(DeclineReason.INTERNAL_ERROR, why)

    def take_back(self, handle: Offered) -> None:
        """A request is gone, or asked about anew: what no rank was told of is cancelled."""
        if not handle.ordered:
            self._let_go(handle.name)
        elif self.shared.take_back(handle.name):
            self._answered(handle.name, "cancelled before it was loaded")

    def end(self, handle: Offered) -> None:
        """A request has ended; if its ranks still answer, that settles it."""
        if handle.name in self.relied_on:
            handle.has_ended = True
            return
        held, _ = self.shared.ended(handle, handle.block_ids)
        if held:
            self._held.add(handle.name)
        self.gone(handle)

    # -- the desk ----------------------------------------------------------------------

    def plan(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs to climb, or None: nothing to climb for. Never raises."""
        with self._lock:
            try:
                self.settle()
                return self.open_ladder(question)
            except Exception as error:
                if not isinstance(error, SemBlendError):
                    logger.warning("SemBlend could not plan a ladder", exc_info=True)
                self.audit.event("lookup_error", detail=repr(error))
            return None

    def report(self, salt: str, *, wait_s: float = 5.0) -> dict[str, Any]:
        """What became of a ladder, once every rank has answered or the wait is over."""
        ladder_id = split_salt(salt)[1] or ""
        until = deadline(wait_s)
        while True:
            with self._lock:
                self.settle()
                left = until - deadline(0.0)
                if self.ladders.is_settled(ladder_id) or left <= 0:
                    return self.ladders.close(ladder_id, certified=self.shared.setup.certified)
            self._link.wait(min(left, 0.1))

    # -- answers -----------------------------------------------------------------------

    def settle(self) -> None:
        """Look at what the ranks have answered; every call from the engine does this first."""
        with self._lock:
            for event, fields in self._link.take_notes():
                self.audit.event(event, **fields)
            for report in self._link.take():
                with beside("settle an answer"):
                    self._settle_report(report)

    def _settle_report(self, report: WorkerReport) -> None:
        self.shared.update(report, None)
        for request_id in {*report.loaded, *report.failed}:
            failure = report.failed.get(request_id)
            with beside("settle a load"):
                self._answered(request_id, None if failure is None else failure.detail)
        freed = {one for one in self._held if not self.shared.is_capturing(one)}
        self._held -= freed
        self.shared.update(None, freed)
        for donor_id in report.captured:
            if self.planner.pipeline.holds(donor_id):
                self.kept(donor_id)

    def _answered(self, request_id: str, failure: str | None) -> None:
        """Every rank has answered a load, or none was told of it."""
        load = self._let_go(request_id)
        if load is None:
            return
        request, plan = load.request, load.plan
        if request.ladder_id is not None:
            self.ladders.answered(request.ladder_id, plan.reused_tokens, failure)
        if request is self.shared.requests.get(request_id):  # else its allocation was destroyed
            self.loaded(request, plan, failure)
            if request.handle.has_ended:
                self.end(request.handle)

    def _let_go(self, request_id: str) -> Reliance[Offered] | None:
        load = self.relied_on.pop(request_id, None)
        if load is not None:
            self.room.unpin(load.plan.donor_ids)
        return load

    def close(self) -> None:
        """Stop the threads and close the audit file."""
        self.settle()
        self.shared.close()

    # -- what an engine's own side adds ------------------------------------------------

    def open_ladder(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs to climb, or None."""
        return None

    def loaded(self, request: Request[Any], plan: Plan, failure: str | None) -> None:
        """Every rank has answered a live request's load."""

    def kept(self, donor_id: str) -> None:
        """Every rank holds a donor that can be found."""

    def gone(self, handle: Offered) -> None:
        """A request is no longer known here."""
