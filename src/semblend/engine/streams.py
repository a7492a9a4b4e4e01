"""Device work in parallel with passes: a separate stream, ordered where necessary.

Capture reads a finished prompt's pages while later passes run. It waits only for the passes
launched before the prompt was offered. Its pages are held until the read has finished, not just
launched. On a CPU there is nothing to order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A side stream of a device. Does nothing without a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event | None:
        """Mark everything launched so far on the calling thread's stream."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def after(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """Launch on the side stream, after `mark`. Waits for completion when the block ends."""
        if self.stream is None or mark is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            try:
                yield
            finally:
                self.stream.synchronize()
