"""Work on the device beside the passes: a stream of its own, in order where it must be.

Capture reads pages of a finished prompt while later passes run. It waits for the passes
launched before the prompt was offered, and for nothing else; and its pages are held
until the reading is done, not merely launched. On a CPU there is nothing to order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """One stream beside a device's own; does nothing where there is no GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event | None:
        """Everything launched so far on the calling thread's stream."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def after(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """Launch on the side stream, behind `mark`; done with everything when the block ends."""
        if self.stream is None or mark is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            try:
                yield
            finally:
                self.stream.synchronize()
