"""Room for donors on the ranks: who makes it, and what the ranks are told to drop.

Most engines compute what a load could not supply, so their ranks evict as they like and report
what they lost. An engine that cannot be told that a load failed needs the opposite: a donor that
was offered must stay on every rank until the load is done. There the scheduler alone counts the
bytes, chooses who makes room, and never one that an offer relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semblend.integration.scheduler.donor_budget import DonorBudget
from semblend.integration.scheduler.engine_planner import Offer


class RankRoom:
    """Ranks that make room by themselves."""

    def __init__(self) -> None:
        self._dropped: list[str] = []

    def admit(self, offer: Offer, share_key: bytes) -> tuple[bool, Sequence[str]]:
        """Whether the ranks take a donor, and which others must go for it."""
        return True, ()

    def copied(self, donor_id: str) -> None:
        """Every rank has answered a capture."""

    def forgotten(self, donor_id: str) -> None:
        """A donor can no longer be found. May be called from any thread."""
        self._dropped.append(donor_id)

    def take_dropped(self) -> list[str]:
        """Donors for the ranks to drop, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def clear(self) -> None:
        """The ranks drop everything."""
        self._dropped.clear()


class LeaderRoom(RankRoom):
    """Ranks that keep what they are told to, and nothing else."""

    def __init__(self, capacity_bytes: int, token_bytes: Callable[[], int]) -> None:
        """`token_bytes` is what one token takes on one rank; 0 while that is not known."""
        super().__init__()
        self.budget = DonorBudget(capacity_bytes)
        self._token_bytes = token_bytes
        self._dying: set[str] = set()
        """Donors that were forgotten while an offer still relied on them."""

    def admit(self, offer: Offer, share_key: bytes) -> tuple[bool, Sequence[str]]:
        """Whether there is room within the budget; a donor stays while it is being copied."""
        from semblend.integration.worker.donors import segment_keys  # needs torch

        self.budget.set_token_bytes(self._token_bytes())
        kept, evicted = self.budget.admit(offer.donor_id, segment_keys(share_key, offer.tokens))
        self._dropped += evicted
        if kept:
            self.budget.pin((offer.donor_id,))
        return kept, evicted

    def copied(self, donor_id: str) -> None:
        """Every rank has answered a capture: the donor may make room from now on."""
        self.unpin((donor_id,))

    def pin(self, donor_ids: tuple[str, ...]) -> bool:
        """Keep these until :meth:`unpin`; False if the ranks do not hold one of them."""
        return self.budget.pin(donor_ids)

    def unpin(self, donor_ids: tuple[str, ...]) -> None:
        """What relied on these has ended; those that were only kept for it go."""
        self.budget.unpin(donor_ids)
        for donor_id in donor_ids:
            if donor_id in self._dying and not self.budget.is_pinned(donor_id):
                self._dying.discard(donor_id)
                self._drop(donor_id)

    def forgotten(self, donor_id: str) -> None:
        """A donor can no longer be found: it goes once nothing relies on it."""
        if donor_id not in self.budget:
            return
        if self.budget.is_pinned(donor_id):
            self._dying.add(donor_id)
        else:
            self._drop(donor_id)

    def clear(self) -> None:
        """The ranks drop everything."""
        super().clear()
        self.budget.clear()
        self._dying.clear()

    def _drop(self, donor_id: str) -> None:
        self.budget.remove(donor_id)
        self._dropped.append(donor_id)
