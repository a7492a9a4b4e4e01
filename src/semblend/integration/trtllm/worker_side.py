"""The connector on one rank: loads before the forward, captures after it.

Call order in a step: `bind` (metadata is there), `start_load`, the forward, `after_forward`,
`finished`. A load that was offered must happen: TensorRT-LLM cannot be told otherwise.
Where one fails all the same, a ladder's failure is reported, and its client throws the
answer away and asks again without us; an exact prefix has nobody to report to, so the
step is stopped with an error rather than answered with wrong K/V.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.errors import PlanError, SemBlendError
from semblend.core.faults import FaultPoint, reach
from semblend.integration.scheduler.orders import CaptureCommand, LoadCommand, WorkerReport
from semblend.integration.trtllm.metadata import ConnectorMeta, number_of
from semblend.integration.trtllm.pool_view import PoolView
from semblend.integration.worker.agreement import Agreement, Gather
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.integration.worker.donors import DonorRoom, WorkerDonors, make_tiers
from semblend.integration.worker.loads import failure_of
from semblend.integration.worker.loads_in_flight import LoadInFlight, LoadsInFlight, Placed
from semblend.integration.worker.span_loader import SpanLoader
from semblend.kv.rotary_table import RotaryTable

logger = logging.getLogger("semblend.trtllm")


class LoadFailedError(SemBlendError):
    """An exact prefix that the engine counts on could not be put in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What there is once the pool is."""

    view: PoolView
    donors: WorkerDonors
    captures: CaptureThread
    loader: SpanLoader
    copies: LoadsInFlight
    """Loads whose requests are parked."""


class TrtWorkerSide:
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
        self.parts: _Parts | None = None
        self._meta = ConnectorMeta()
        self._report = WorkerReport()
        self._parked: list[tuple[LoadInFlight, bool]] = []
        """Copies under way, and whether each is a ladder's."""
        self._capturing: dict[int, str] = {}
        self._saving: set[int] = set()
        self._loading: set[int] = set()
        self._fatal: LoadFailedError | None = None

    def register(self, view: PoolView, table: RotaryTable, *, rank: int = 0) -> None:
        """The pool is allocated.

        Raises
        ------
        SemBlendError
            If K/V copied into the pool does not come back, or there is no memory for donors.
        """
        scratch = view.tensor[view.scratch_block].clone()
        tiers = make_tiers(self._room, rank, ranks=self._ranks, token_bytes=view.token_bytes)
        donors = WorkerDonors(tiers)
        loader = SpanLoader(view, donors, table)  # proves the pool, in the scratch block
        view.tensor[view.scratch_block] = scratch
        _ = view.destination
        self.parts = _Parts(
            view=view,
            donors=donors,
            captures=CaptureThread(view, donors),
            loader=loader,
            copies=LoadsInFlight(self._copy_beside, device=view.device, threads=1),
        )

    # -- a step ------------------------------------------------------------------------

    def bind(self, meta: ConnectorMeta) -> None:
        """This step's orders, the same on every rank."""
        for capture in self._meta.captures:
            # Its forward never came to an end: what the blocks hold is not a prompt's K/V.
            self._not_captured(capture, "the step was not computed")
        self._meta = meta
        self._agreement.expect(meta)

    def start_load(self, stream: Any = None) -> None:
        """Carry out what must be in place before the forward."""
        meta, parts = self._meta, self.parts
        if parts is not None:
            for donor_id in meta.dropped:
                parts.donors.drop(donor_id)
        loads, meta.loads, meta.dropped = meta.loads, [], []
        with self._on(stream):
            for command in loads:
                private = command.request_id in meta.private
                if command.request_id in meta.parked and parts is not None:
                    self._parked.append((parts.copies.begin(command), private))
                    continue
                try:
                    self._copy(command)
                except Exception as error:
                    self._loaded(command, error, private=private)
                else:
                    self._loaded(command, None, private=private)
        if self._ranks == 1:
            self._exchange()  # nobody to wait for, and a stopped step does not come further
        self._raise_fatal()

    def after_forward(self, stream: Any = None) -> None:
        """This step's K/V is written, or will be on its stream: copy what becomes a donor."""
        captures, self._meta.captures = self._meta.captures, []
        with self._on(stream):
            for command in captures:
                if self.parts is None:
                    self._not_captured(command, "no pool was registered")
                    continue
                self._capturing[number_of(command.request_id)] = command.request_id
                self.parts.captures.submit(command)

    def finished(self, saving: list[int], loading: list[int]) -> tuple[list[int], list[int]]:
        """Requests whose blocks are no longer read, and those whose loads are done.

        Each id is handed in once, so it is kept until it can be returned.
        """
        self._saving.update(saving)
        self._loading.update(loading)
        for load, private in [one for one in self._parked if one[0].ended.done()]:
            self._parked.remove((load, private))
            self._loaded(load.command, load.ended.exception(), private=private)
        parked = {number_of(load.command.request_id) for load, _ in self._parked}
        loaded = sorted(self._loading - parked)
        saved = sorted(number for number in self._saving if not self._is_capturing(number))
        self._exchange()  # after that: a copy that ends in between is reported in time
        self._raise_fatal()
        self._saving -= set(saved)
        self._loading -= set(loaded)
        return saved, loaded

    def close(self) -> None:
        """Stop the threads and let go of the donors. Idempotent."""
        if self.parts is not None:
            self.parts.captures.close()
            self.parts.copies.close()
            self.parts.donors.clear()
            self.parts.donors.close()

    # -- copying -----------------------------------------------------------------------

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

    def _loaded(self, command: LoadCommand, error: BaseException | None, *, private: bool) -> None:
        if error is None:
            self._report.loaded[command.request_id] += 1
            return
        failure = failure_of(error)
        logger.error("SemBlend load failed request_id=%s: %s", command.request_id, failure.detail)
        self._report.failed[command.request_id] = failure
        if not private:
            self._fatal = LoadFailedError(
                f"request {command.request_id}: {failure.detail}; the engine counts on this K/V "
                f"and cannot be told to compute it"
            )

    def _not_captured(self, command: CaptureCommand, why: str) -> None:
        self._report.rejected[command.donor_id] = why
        self._report.answered[command.donor_id] += 1

    def _is_capturing(self, number: int) -> bool:
        name = self._capturing.get(number)
        if name is None or self.parts is None or not self.parts.captures.is_pending(name):
            self._capturing.pop(number, None)
            return False
        return True

    def _exchange(self) -> None:
        if not self._agreement.is_open:
            return
        mine, self._report = self._report, WorkerReport()
        if self.parts is not None:
            mine = mine + self.parts.captures.take_report()
            mine.lost |= self.parts.donors.take_lost()
        agreed = self._agreement.exchange(mine)
        if self._tell is not None and not agreed.is_empty:
            self._tell(agreed)

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal

    @contextlib.contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        """The engine's own stream, so that its forward comes behind the load."""
        if stream is None or self.parts is None or self.parts.view.device.type != "cuda":
            yield
            return
        with torch.cuda.stream(stream):
            yield
