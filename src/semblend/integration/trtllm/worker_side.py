"""The connector on one rank: loads before the forward, captures after it.

Call order in a step: `bind` (metadata is there), `start_load`, the forward, `after_forward`,
`finished`. A load that was offered must happen: TensorRT-LLM cannot be told otherwise.
Where one fails all the same, a ladder's failure is reported, and its client throws the
answer away and asks again without us; an exact prefix has nobody to report to, so the
step is stopped with an error rather than answered with wrong K/V.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from semblend.core.errors import SemBlendError
from semblend.integration.scheduler.orders import LoadFailure, WorkerReport
from semblend.integration.trtllm.metadata import ConnectorMeta, number_of
from semblend.integration.worker.agreeing_worker import AgreeingWorker
from semblend.integration.worker.agreement import Gather
from semblend.integration.worker.loads_in_flight import LoadInFlight


class LoadFailedError(SemBlendError):
    """An exact prefix that the engine counts on could not be put in place."""


class TrtWorkerSide(AgreeingWorker):
    """One rank, as TensorRT-LLM calls it; it knows requests by numbers."""

    def __init__(
        self,
        *,
        host_donor_bytes: int,
        ranks: int = 1,
        gather: Gather | None = None,
        tell: Callable[[WorkerReport], None] | None = None,
    ) -> None:
        super().__init__(host_donor_bytes=host_donor_bytes, ranks=ranks, gather=gather, tell=tell)
        self._meta = ConnectorMeta()
        self._parked: list[tuple[LoadInFlight, bool]] = []
        """Copies under way, and whether each is a ladder's."""
        self._capturing: dict[int, str] = {}
        self._saving: set[int] = set()
        self._loading: set[int] = set()
        self._fatal: LoadFailedError | None = None

    def bind(self, meta: ConnectorMeta) -> None:
        """This step's orders, the same on every rank."""
        for capture in self._meta.captures:
            # Its forward never came to an end: what the blocks hold is not a prompt's K/V.
            self.not_captured(capture, "the step was not computed")
        self._meta = meta
        self.expect(meta)

    def start_load(self, stream: Any = None) -> None:
        """Carry out what must be in place before the forward."""
        meta, parts = self._meta, self.parts
        self.drop(meta.dropped)
        loads, meta.loads, meta.dropped = meta.loads, [], []
        with self._on(stream):
            for command in loads:
                private = command.request_id in meta.private
                if command.request_id in meta.parked and parts is not None:
                    self._parked.append((parts.copies.begin(command), private))
                else:
                    self._answered(command.request_id, self.load(command), private=private)
        if self._ranks == 1:
            self.exchange()  # nobody to wait for, and a stopped step does not come further
        self._raise_fatal()

    def after_forward(self, stream: Any = None) -> None:
        """This step's K/V is written, or will be on its stream: copy what becomes a donor."""
        captures, self._meta.captures = self._meta.captures, []
        with self._on(stream):
            for command in captures:
                if self.capture(command):
                    self._capturing[number_of(command.request_id)] = command.request_id

    def finished(self, saving: list[int], loading: list[int]) -> tuple[list[int], list[int]]:
        """Requests whose blocks are no longer read, and those whose loads are done.

        Each id is handed in once, so it is kept until it can be returned.
        """
        self._saving.update(saving)
        self._loading.update(loading)
        for load, private in [one for one in self._parked if one[0].ended.done()]:
            self._parked.remove((load, private))
            failure = self.answer(load.command, load.ended.exception())
            self._answered(load.command.request_id, failure, private=private)
        parked = {number_of(load.command.request_id) for load, _ in self._parked}
        loaded = sorted(self._loading - parked)
        captured = {
            number for number, name in self._capturing.items() if not self.is_capturing(name)
        }
        for number in captured:
            del self._capturing[number]
        saved = sorted(self._saving - self._capturing.keys())
        self.exchange()  # after that: a copy that ends in between is reported in time
        self._raise_fatal()
        self._saving -= set(saved)
        self._loading -= set(loaded)
        return saved, loaded

    def _answered(self, request_id: str, failure: LoadFailure | None, *, private: bool) -> None:
        if failure is not None and not private:
            self._fatal = LoadFailedError(
                f"request {request_id}: {failure.detail}; the engine counts on this K/V "
                f"and cannot be told to compute it"
            )

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
