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
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from semblend.core.errors import PlanError, SemBlendError
from semblend.core.faults import FaultPoint, fault_point, reach
from semblend.integration.trtllm.agreement import Agreement, Gather
from semblend.integration.trtllm.donor_segments import DonorSegments
from semblend.integration.trtllm.metadata import (
    CaptureCommand,
    ConnectorMeta,
    LoadCommand,
    RankReport,
)
from semblend.integration.trtllm.pool_view import PoolView
from semblend.integration.worker.copy_threads import CopyThread
from semblend.kv.donor_pieces import DonorRun, add_runs
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyRuns
from semblend.kv.transfer import copy_spans

logger = logging.getLogger("semblend.trtllm")


class LoadFailedError(SemBlendError):
    """An exact prefix that the engine counts on could not be put in place."""


class WorkerSide:
    """Owns this rank's donors and its view of the pool. One thread calls it."""

    def __init__(
        self,
        *,
        host_donor_bytes: int,
        ranks: int = 1,
        gather: Gather | None = None,
        tell: Callable[[RankReport], None] | None = None,
    ) -> None:
        self.donors = DonorSegments(host_donor_bytes)
        self.view: PoolView | None = None
        self._table: RotaryTable | None = None
        self._agreement = Agreement(ranks=ranks, gather=gather or (lambda mine: [mine]), tell=tell)
        self._meta: ConnectorMeta | None = None
        self._captures: CopyThread | None = None
        self._loads: CopyThread | None = None
        self._saving: set[int] = set()
        self._loading: set[int] = set()
        self._fatal: LoadFailedError | None = None

    def register(self, view: PoolView, table: RotaryTable) -> None:
        """The pool is allocated."""
        self.view, self._table = view, table.to(view.device)
        self._captures = CopyThread("semblend-capture", view.device)
        self._loads = CopyThread("semblend-load", view.device)

    # -- a step ------------------------------------------------------------------------

    def bind(self, meta: ConnectorMeta) -> None:
        """This step's orders, the same on every rank."""
        if self._meta is not None:
            for capture in self._meta.captures:
                # Its forward never came to an end: what the blocks hold is not a prompt's K/V.
                self._captured(capture, PlanError("the step was not computed"))
        self._meta = meta
        self._agreement.expect(meta)

    def start_load(self, stream: Any = None) -> None:
        """Carry out what must be in place before the forward."""
        meta = self._meta
        if meta is None:
            return
        for donor_id in meta.dropped:
            self.donors.drop(donor_id)
        meta.dropped = []
        loads, meta.loads = meta.loads, []
        for command in loads:
            if command.asynchronous and self._loads is not None:
                self._loads.submit(
                    command.request_id,
                    partial(self._load, command),
                    partial(self._loaded, command),
                    stream,
                )
                continue
            error: BaseException | None = None
            try:
                with _on(stream, self.view):
                    self._load(command)
            except Exception as raised:
                error = raised
            self._loaded(command, error)
        self._raise_fatal()

    def after_forward(self, stream: Any = None) -> None:
        """This step's K/V is written, or will be on its stream: copy what becomes a donor."""
        if self._meta is None:
            return
        captures, self._meta.captures = self._meta.captures, []
        for command in captures:
            if self._captures is None:
                self._captured(command, PlanError("no pool was registered"))
                continue
            self._captures.submit(
                command.request_id,
                partial(self._capture, command),
                partial(self._captured, command),
                stream,
            )

    def finished(self, saving: list[int], loading: list[int]) -> tuple[list[int], list[int]]:
        """Requests whose blocks are no longer read, and those whose loads are done.

        Each id is handed in once, so it is kept until it can be returned.
        """
        self._agreement.exchange()
        self._raise_fatal()
        self._saving.update(saving)
        self._loading.update(loading)
        saved = [one for one in sorted(self._saving) if not _busy(self._captures, one)]
        loaded = [one for one in sorted(self._loading) if not _busy(self._loads, one)]
        self._saving -= set(saved)
        self._loading -= set(loaded)
        return saved, loaded

    def wait(self) -> None:
        """Wait for all copies that are under way. For tests."""
        for thread in (self._captures, self._loads):
            if thread is not None:
                thread.wait()

    def close(self) -> None:
        """Stop the threads and let go of the donors. Idempotent."""
        for thread in (self._captures, self._loads):
            if thread is not None:
                thread.close()
        self.donors.clear()

    # -- copying -----------------------------------------------------------------------

    @torch.inference_mode()
    def _load(self, command: LoadCommand) -> None:
        """Fill the command's blocks: donor K/V, K turned to its new position."""
        view, table = self.view, self._table
        if view is None or table is None:
            raise PlanError("no pool was registered")
        size = view.block_size
        start, end = command.start // size * size, command.end // size * size
        reach(FaultPoint.ALLOCATION)
        wanted: dict[str, list[DonorRun]] = {}
        for span in command.spans:
            part = span.clipped(start, end)
            if part is not None:
                run = DonorRun(part.donor_start, part.donor_end, part.delta)
                wanted.setdefault(part.donor_id, []).append(run)
        runs = CopyRuns()
        for donor_id, parts in wanted.items():
            add_runs(runs, donor_id, self.donors.donor(donor_id), parts, command.tokens)
        batch = runs.batch(view.slots(command.block_ids, start, end))
        if len(batch) != end - start:
            raise PlanError(f"{len(batch)} of {end - start} tokens of an offer are supplied")
        copy_spans(view.paged, batch, table)

    def _loaded(self, command: LoadCommand, error: BaseException | None) -> None:
        failure = None if error is None else f"{type(error).__name__}: {error}"
        if failure is not None:
            logger.error("SemBlend load failed request_id=%s: %s", command.request_id, failure)
            if not command.plan.kind.request_local:
                self._fatal = LoadFailedError(
                    f"request {command.request_id}: {failure}; the engine counts on this K/V and "
                    f"cannot be told to compute it"
                )
        self._agreement.answer(("load", command.load_id), failure)

    @torch.inference_mode()
    @fault_point(FaultPoint.CAPTURE)
    def _capture(self, command: CaptureCommand) -> None:
        view = self.view
        if view is None:
            raise PlanError("no pool was registered")
        reach(FaultPoint.ALLOCATION)
        read: dict[bytes, torch.Tensor] = {}
        for key in self.donors.missing(command.share_key, command.tokens):
            kv = view.read(command.block_ids, key.start, key.start + key.length)
            if kv.device.type != "cpu":
                host = torch.empty(kv.shape, dtype=kv.dtype, pin_memory=True)
                kv = host.copy_(kv, non_blocking=True)
            read[key.digest] = kv
        if view.device.type == "cuda":
            torch.cuda.current_stream(view.device).synchronize()
        self.donors.keep(command.donor_id, command.share_key, command.tokens, read)

    def _captured(self, command: CaptureCommand, error: BaseException | None) -> None:
        failure = None if error is None else f"{type(error).__name__}: {error}"
        if failure is not None:
            # Losing a donor harms no request.
            logger.warning("SemBlend did not keep %s: %s", command.donor_id, failure)
        self._agreement.answer(("capture", command.capture_id), failure)

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal


def _busy(thread: CopyThread | None, request_id: int) -> bool:
    return thread is not None and thread.is_busy(request_id)


@contextlib.contextmanager
def _on(stream: Any, view: PoolView | None) -> Any:
    """The engine's own stream, so that its forward comes behind the load."""
    if stream is None or view is None or view.device.type != "cuda":
        yield
        return
    with torch.cuda.stream(stream):
        yield
