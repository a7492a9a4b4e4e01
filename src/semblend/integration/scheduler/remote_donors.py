"""The interface through which the scheduler side moves donors between machines.

An adapter knows nothing about fleets. The code that builds it may give each side one of these;
the fleet does so where the settings name a shared store.
"""

from __future__ import annotations

from typing import Any, Protocol

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.orders import FetchCommand, WorkerReport
from semblend.integration.scheduler.request import Request


class RemoteDonors(Protocol):
    """Tells the scheduler which donors on other machines are worth their transfer."""

    def share(self, donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
        """A donor is being captured: its key in the fleet, or None if it is not shared."""
        ...

    def waits_for(self, request: Request[Any], plan: Plan, computed_tokens: int) -> bool:
        """Whether a request should wait for a donor in transit. Never raises."""
        ...

    def take_fetches(self) -> list[FetchCommand]:
        """Orders to the workers since the last call."""
        ...

    def settle(self, report: WorkerReport) -> None:
        """Take the workers' report, after the bridge has."""
        ...

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping to collect the workers' reports."""
        ...

    def forget(self, request_id: str) -> None:
        """A request ended."""
        ...

    def stop(self) -> None:
        """Stop sharing and fetching: the weights may have changed."""
        ...
