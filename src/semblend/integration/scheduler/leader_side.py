"""The shared side where an offer stands once it is made, and the ranks answer late.

Such an engine cannot be told that a load failed, so donors stay on the ranks (`LeaderRoom`) until
every rank has answered the load they were offered for, also behind the request's end. What the
ranks did comes back through a link and is looked at whenever the engine calls (`settle`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from semblend.core.errors import PlanError
from semblend.core.plan import Plan
from semblend.integration.ladder_desk import Ladders
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.scheduler.orders import WorkerReport
from semblend.integration.scheduler.port import PlainRequest, SchedulerPort
from semblend.integration.scheduler.rank_room import LeaderRoom
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.settlement import beside
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.scheduler.staged import DeskRungs
from semblend.integration.scheduler.worker_link import WorkerLink


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

    def rely(self, request: Request[Offered], plan: Plan) -> bool:
        """Have a plan's donors stay until its load is answered; False if one is gone."""
        if not self.room.pin(plan.donor_ids):
            return False
        self.relied_on[request.request_id] = Reliance(request=request, plan=plan)
        return True

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

    # -- for an engine's own side, which hears of these --------------------------------

    def loaded(self, request: Request[Any], plan: Plan, failure: str | None) -> None:
        """Every rank has answered a live request's load."""

    def kept(self, donor_id: str) -> None:
        """Every rank holds a donor that can be found."""

    def gone(self, handle: Offered) -> None:
        """A request is no longer known here."""
