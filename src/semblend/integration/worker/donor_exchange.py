"""The interface through which the worker side moves donors between machines."""

from __future__ import annotations

from typing import Protocol

from semblend.integration.scheduler.orders import CaptureCommand, FetchCommand, WorkerReport


class DonorExchange(Protocol):
    """Puts a rank's donor K/V into a shared store and fetches others' from there.

    Nothing here blocks the engine's thread except :meth:`wait_a_little`.
    """

    def share(self, command: CaptureCommand) -> None:
        """Queue a stored prompt for sharing. Called on the capture thread."""
        ...

    def fetch(self, command: FetchCommand) -> None:
        """Queue a donor for fetching; the report says when it is stored, or why it is not."""
        ...

    def wait_a_little(self) -> None:
        """Yield to work in progress: the engine has nothing else to do."""
        ...

    def take_report(self) -> WorkerReport:
        """What was shared and fetched since the last call."""
        ...

    def clear(self) -> None:
        """Stop sharing for good: what was shared may be wrong."""
        ...

    def close(self) -> None:
        """Stop, and withdraw what was shared."""
        ...
