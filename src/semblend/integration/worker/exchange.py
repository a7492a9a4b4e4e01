"""What the worker's side asks of whoever moves donors between machines."""

from __future__ import annotations

from typing import Protocol

from semblend.integration.scheduler.orders import CaptureCommand, FetchCommand, WorkerReport


class DonorExchange(Protocol):
    """A rank's hands: puts its donors' K/V into a shared store and brings others' from there.

    Nothing here blocks the engine's thread, but for :meth:`wait_a_little`.
    """

    def share(self, command: CaptureCommand) -> None:
        """A prompt was stored; have others find it, soon. Called on the capture thread."""
        ...

    def fetch(self, command: FetchCommand) -> None:
        """Bring a donor, soon; the report says when it is stored, or why it is not."""
        ...

    def wait_a_little(self) -> None:
        """Give way to work in progress: the engine has nothing else to do."""
        ...

    def take_report(self) -> WorkerReport:
        """What was shared and fetched since the last call."""
        ...

    def clear(self) -> None:
        """Share nothing any more, now or later: what was shared may be wrong."""
        ...

    def close(self) -> None:
        """Stop, and withdraw what was shared."""
        ...
