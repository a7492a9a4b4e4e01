"""One rank's donors, where loads stand before the forward and ranks settle once a step.

For engines that cannot be told in the middle of a step that a load failed: what every rank has
answered is exchanged at one point of the step (`agreement`). Donors stay until the scheduler has
them dropped. An engine's own worker says when, and what a failure means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from semblend.core.errors import PlanError
from semblend.core.faults import FaultPoint, reach
from semblend.integration.scheduler.orders import (
    CaptureCommand,
    LoadCommand,
    LoadFailure,
    StepOrders,
    WorkerReport,
)
from semblend.integration.worker.agreement import Agreement, Gather
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.integration.worker.donors import DonorRoom, WorkerDonors, make_tiers
from semblend.integration.worker.loads import failure_of
from semblend.integration.worker.loads_in_flight import LoadsInFlight, Placed
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.span_loader import SpanLoader
from semblend.kv.layer_rotary import Rotary

logger = logging.getLogger("semblend.adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """What there is once the pool is."""

    view: KvAccess
    donors: WorkerDonors
    captures: CaptureThread
    loader: SpanLoader
    copies: LoadsInFlight
    """Loads that are made beside the engine's steps."""


class AgreeingWorker:
    """Owns this rank's donors and its view of the pool. One thread calls it."""

    def __init__(
        self,
        *,
        host_donor_bytes: int,
        ranks: int = 1,
        gather: Gather | None = None,
        tell: Callable[[WorkerReport], None] | None = None,
    ) -> None:
        """`tell` is the leader's: it is called with what every rank has answered."""
        self._room = DonorRoom(host_bytes=host_donor_bytes, evicts=False)
        self._ranks = ranks
        self._agreement = Agreement(ranks=ranks, gather=gather or (lambda mine: [mine]))
        self._tell = tell
        self._report = WorkerReport()
        self.parts: PoolParts | None = None

    def register(self, view: KvAccess, table: Rotary, *, rank: int = 0) -> None:
        """The pool is allocated.

        Raises
        ------
        SemBlendError
            If K/V copied into the pool does not come back, or there is no memory for donors.
        """
        tiers = make_tiers(self._room, rank, ranks=self._ranks, token_bytes=view.token_bytes)
        donors = WorkerDonors(tiers)
        loader = SpanLoader(view, donors, table)  # proves the pool, in the scratch block
        _ = view.destination
        self.parts = PoolParts(
            view=view,
            donors=donors,
            captures=CaptureThread(view, donors),
            loader=loader,
            copies=LoadsInFlight(self._copy_beside, device=view.device, threads=1),
        )

    def expect(self, orders: StepOrders) -> None:
        """This step's orders, the same on every rank: each will be answered."""
        self._agreement.expect(orders)

    def drop(self, donor_ids: list[str]) -> None:
        """Let go of donors."""
        if self.parts is not None:
            for donor_id in donor_ids:
                self.parts.donors.drop(donor_id)

    def load(self, command: LoadCommand) -> LoadFailure | None:
        """Fill a command's blocks on the current stream; the answer says why not, if so."""
        try:
            self._copy(command)
        except Exception as error:
            return self.answer(command, error)
        return self.answer(command, None)

    def answer(self, command: LoadCommand, error: BaseException | None) -> LoadFailure | None:
        """A load has ended on this rank."""
        if error is None:
            self._report.loaded[command.request_id] += 1
            return None
        failure = self._report.failed[command.request_id] = failure_of(error)
        logger.error("SemBlend load failed request_id=%s: %s", command.request_id, failure.detail)
        return failure

    def capture(self, command: CaptureCommand) -> bool:
        """Begin to copy a prompt's K/V behind the current stream; False where there is no pool."""
        if self.parts is None:
            self.not_captured(command, "no pool was registered")
            return False
        self.parts.captures.submit(command)
        return True

    def not_captured(self, command: CaptureCommand, why: str) -> None:
        """Answer a capture that is not made."""
        self._report.rejected[command.donor_id] = why
        self._report.answered[command.donor_id] += 1

    def is_capturing(self, request_id: str) -> bool:
        """Whether a request's blocks are still read."""
        return self.parts is not None and self.parts.captures.is_pending(request_id)

    def exchange(self) -> None:
        """Settle with the other ranks on what all have answered; all call it at the same point."""
        if not self._agreement.is_open:
            return
        mine, self._report = self._report, WorkerReport()
        if self.parts is not None:
            mine = mine + self.parts.captures.take_report()
            mine.lost |= self.parts.donors.take_lost()
        agreed = self._agreement.exchange(mine)
        if self._tell is not None and not agreed.is_empty:
            self._tell(agreed)

    def close(self) -> None:
        """Stop the threads and let go of the donors. Idempotent."""
        if self.parts is not None:
            self.parts.captures.close()
            self.parts.copies.close()
            self.parts.donors.clear()
            self.parts.donors.close()

    def _copy(self, command: LoadCommand) -> None:
        """Fill the command's blocks on the current stream: donor K/V, K turned to its place."""
        if self.parts is None or command.refused:
            raise PlanError(command.refused or "no pool was registered")
        reach(FaultPoint.ALLOCATION)
        load = self.parts.loader.begin(command)
        try:
            load.place_all()
            load.finish()
        finally:
            load.close()

    def _copy_beside(self, command: LoadCommand, placed: Placed) -> None:
        reach(FaultPoint.KILLED_WORKER)
        self._copy(command)
        placed(None)  # no pass waits for it
