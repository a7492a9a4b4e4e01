"""Copies of donor K/V that run beside the engine's steps.

The engine does not schedule a request before its load has ended, so a copy need not run
in a step. On a GPU a thread makes it, on its own stream: it starts after everything
the engine has launched so far, which may still use the blocks' former contents. It is placed
when all of it is queued there, and a pass can then be queued of which every layer waits only
for that layer's copy. It has ended when the host knows that every byte arrived intact. On a
CPU, where a thread would take the step's own cores, it is made at once.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from semblend.core.errors import DonorError
from semblend.integration.scheduler.orders import LoadCommand
from semblend.kv.in_flight import IN_FLIGHT

IDLE_WAIT_S = 0.005
"""A new request that arrives meanwhile waits no longer than this."""


class LayerArrivals:
    """CUDA events after which layers of a load are in place, in order of layers."""

    def __init__(self, ends: Sequence[int], events: Sequence[Any]) -> None:
        """`ends` are the first layers that the events do not cover."""
        self._ends = ends
        self._events = events
        self._waited = 0

    def wait(self, layer: int) -> None:
        """Make the current stream wait for a layer. All waits are made on one stream."""
        number = bisect_right(self._ends, layer)
        if number >= self._waited:
            torch.cuda.current_stream().wait_event(self._events[number])
            self._waited = number + 1


Placed = Callable[[LayerArrivals | None], None]
Copy = Callable[[LoadCommand, Placed], None]
"""Makes a load's copies; calls back when all of them are queued on the current stream."""


@dataclass(slots=True, eq=False)
class LoadInFlight:
    """One load whose spans are being copied."""

    command: LoadCommand
    ended: Future[float] = field(default_factory=Future)
    """Milliseconds the copy took, or what it raised."""
    placed: LayerArrivals | None = None
    """When the layers are in place, once all copies are queued; None before, and on a CPU."""
    cancelled: str = ""

    def check(self) -> None:
        """Raise what the copy raised so far, or why it may not be used."""
        if self.cancelled:
            raise DonorError(self.cancelled)
        if self.ended.done():
            self.ended.result()

    @property
    def copy_ms(self) -> float:
        """How long the copy took; 0 while it runs, or if it failed."""
        if not self.ended.done() or self.ended.exception():
            return 0.0
        return self.ended.result()

    def wait_for_layer(self, layer: int) -> None:
        """Make the current stream wait for a layer's copies."""
        if self.placed is not None:
            self.placed.wait(layer)


class LoadsInFlight:
    """Starts copies; the caller follows each through the object it gets back."""

    def __init__(self, copy: Copy, *, device: torch.device, threads: int) -> None:
        self._copy = copy
        self._device = device
        self._changed = threading.Event()
        self._streams = threading.local()
        self._executor = (
            ThreadPoolExecutor(threads, "semblend-load", initializer=self._use_device)
            if threads
            else None
        )

    def begin(self, command: LoadCommand) -> LoadInFlight:
        """Start a copy. Never raises: errors are reported when it has ended."""
        load = LoadInFlight(command=command)
        if self._executor is None:
            self._make(load)
        else:
            self._executor.submit(self._make_behind, load, self._launched())
        return load

    def wait_a_little(self) -> None:
        """Yield to copies in progress: there is nothing else to do."""
        self._changed.wait(IDLE_WAIT_S)
        self._changed.clear()

    def close(self) -> None:
        """Wait for the copies that were started."""
        if self._executor is not None:
            self._executor.shutdown()

    def _make_behind(self, load: LoadInFlight, launched: Any) -> None:
        if launched is None:
            self._make(load)
            return
        stream = self._streams.stream
        with torch.cuda.stream(stream):
            stream.wait_event(launched)
            self._make(load)

    def _make(self, load: LoadInFlight) -> None:
        started = time.perf_counter()
        failure: BaseException | None = None
        try:
            self._copy(load.command, lambda arrivals: self._placed(load, arrivals))
        except BaseException as error:
            failure = error
        try:
            if self._device.type == "cuda":
                # What was queued before the failure also writes into the request's blocks.
                torch.cuda.current_stream(self._device).synchronize()
            IN_FLIGHT.sweep()  # the donors are no longer read: release their memory
        except BaseException as error:
            failure = failure or error
        if failure is None:
            load.ended.set_result((time.perf_counter() - started) * 1e3)
        elif isinstance(failure, Exception):
            load.ended.set_exception(failure)
        else:
            load.ended.set_exception(RuntimeError(repr(failure)))
        self._changed.set()

    def _placed(self, load: LoadInFlight, arrivals: LayerArrivals | None) -> None:
        load.placed = arrivals
        self._changed.set()

    def _launched(self) -> Any:
        """An event after everything launched on the current stream so far; None on a CPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _use_device(self) -> None:
        """A thread starts on device 0, whichever device its worker uses."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._streams.stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                self._device
            )


def wait_for(loads: list[LoadInFlight]) -> None:
    """Wait until these copies have ended."""
    wait([load.ended for load in loads])
