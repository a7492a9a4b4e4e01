"""Copies of donors' K/V that go on beside the engine's steps.

The engine does not schedule a request before its load has ended, so a copy needs no place
in a step. On a GPU threads make it, on a stream of their own: it starts behind everything
the engine has launched so far, which may still use the blocks' former contents, and it has
ended when the host says so. On a CPU, where a thread would take the step's own cores, it is
made at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.errors import DonorError
from semblend.integration.vllm.metadata import LoadCommand

IDLE_WAIT_S = 0.005
"""A new request that arrives meanwhile waits no longer than this."""

Copy = Callable[[LoadCommand], None]


@dataclass(slots=True, eq=False)
class InFlight:
    """One load whose spans are being copied."""

    command: LoadCommand
    future: Future[float]
    """Milliseconds the copy took, or what it raised."""
    cancelled: str = ""

    def check(self) -> None:
        """Raise what the copy raised, once it has ended."""
        if self.cancelled:
            raise DonorError(self.cancelled)
        self.future.result()

    @property
    def copy_ms(self) -> float:
        """How long the copy took; 0 if it failed."""
        return 0.0 if self.future.exception() else self.future.result()


class LoadsInFlight:
    """Starts copies and says which have ended, in the order they were started."""

    def __init__(self, copy: Copy, *, device: torch.device, threads: int) -> None:
        self._copy = copy
        self._device = device
        self._loads: list[InFlight] = []
        self._streams = threading.local()
        self._executor = (
            ThreadPoolExecutor(threads, "semblend-load", initializer=self._use_device)
            if threads
            else None
        )

    def __len__(self) -> int:
        return len(self._loads)

    def begin(self, command: LoadCommand) -> None:
        """Start a copy. Never raises: what goes wrong is said when it has ended."""
        if self._executor is None:
            future: Future[float] = Future()
            try:
                future.set_result(self._timed(command))
            except Exception as error:
                future.set_exception(error)
        else:
            future = self._executor.submit(self._copy_behind, command, self._launched())
        self._loads.append(InFlight(command=command, future=future))

    def take_ended(
        self, agree: Callable[[Sequence[bool]], list[bool]], *, idle: bool
    ) -> list[InFlight]:
        """Loads whose copies have ended on every rank, well or not.

        Parameters
        ----------
        idle
            Whether the engine has nothing else to do, so that a short wait is better than
            stepping on.
        """
        if not self._loads:
            return []
        if idle:
            wait([load.future for load in self._loads], IDLE_WAIT_S, FIRST_COMPLETED)
        ended = agree([load.future.done() for load in self._loads])
        taken = [load for load, done in zip(self._loads, ended, strict=True) if done]
        self._loads = [load for load, done in zip(self._loads, ended, strict=True) if not done]
        return taken

    def cancel(self, reason: str) -> None:
        """What is being copied may not be used. The copies end as they would."""
        for load in self._loads:
            load.cancelled = reason

    def wait(self) -> None:
        """Wait until every copy has ended."""
        wait([load.future for load in self._loads])

    def close(self) -> None:
        """Wait for the copies that were started."""
        if self._executor is not None:
            self._executor.shutdown()

    def _use_device(self) -> None:
        """A thread starts out on device 0, whichever its worker's is."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._streams.stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                self._device
            )

    def _launched(self) -> Any:
        """An event behind everything the engine has launched so far; None on a CPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _copy_behind(self, command: LoadCommand, launched: Any) -> float:
        if launched is None:
            return self._timed(command)
        stream = self._streams.stream
        with torch.cuda.stream(stream):
            stream.wait_event(launched)
            elapsed_ms = self._timed(command)
        stream.synchronize()
        return elapsed_ms

    def _timed(self, command: LoadCommand) -> float:
        started = time.perf_counter()
        self._copy(command)
        return (time.perf_counter() - started) * 1e3
