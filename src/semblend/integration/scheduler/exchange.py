"""What the scheduler's side asks of whoever moves donors between machines.

An adapter knows nothing of fleets. Whoever makes it may give each side one of these; the fleet's
own room does, where the settings name a shared store.
"""

from __future__ import annotations

from typing import Any, Protocol

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.orders import FetchCommand, WorkerReport
from semblend.integration.scheduler.request import Request


class RemoteDonors(Protocol):
    """The scheduler's eyes: which donors of other machines are worth their transfer."""

    def share(self, donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
        """A donor is being captured: its key in the fleet, or None if it is not to be shared."""
        ...

    def waits_for(self, request: Request[Any], plan: Plan, computed_tokens: int) -> bool:
        """Whether a request should wait for a donor on its way. Never raises."""
        ...

    def take_fetches(self) -> list[FetchCommand]:
        """Orders to the workers since the last call."""
        ...

    def settle(self, report: WorkerReport) -> None:
        """The workers' word, once the bridge has heard it."""
        ...

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should step on, so that the workers are heard."""
        ...

    def forget(self, request_id: str) -> None:
        """A request ended."""
        ...

    def stop(self) -> None:
        """Neither share nor fetch any more: the weights may have changed."""
        ...
