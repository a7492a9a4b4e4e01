"""What the adapter asks of whoever moves donors between machines.

`fleet` gives each side one of these where the settings name a shared store.
"""

from __future__ import annotations

from typing import Protocol

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.vllm.metadata import CaptureCommand, FetchCommand, WorkerReport
from semblend.integration.vllm.request_state import RequestState


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


class RemoteDonors(Protocol):
    """The scheduler's eyes: which donors of other machines are worth their transfer."""

    def share(self, donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
        """A donor is being captured: its key in the fleet, or None if it is not to be shared."""
        ...

    def waits_for(self, state: RequestState, plan: Plan, computed_tokens: int) -> bool:
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
