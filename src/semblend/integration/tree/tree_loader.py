"""Loading a plan: donors found again and locked, slots taken, spans put in place.

All of it happens when the scheduler admits the request, in this order: donors are looked
up in the tree and locked, because taking slots evicts; then slots are taken; then K/V
is copied; then the locks go. Nothing is held afterwards but the request's own slots, so
a load never narrows what the scheduler counted on when it admitted others.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

from semblend.core.errors import CapacityError
from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.provider import DonorsLostError, SemBlendProvider
from semblend.integration.tree.admitted import PrivateLoad
from semblend.integration.tree.slot_tree import SlotTree
from semblend.integration.tree.tree_chains import Following, TreeChains
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.pool_copies import DonorSlots, PoolCopies


class TreeLoader:
    """Carries plans out in the tree's own pool."""

    def __init__(
        self,
        tree: SlotTree,
        copies: PoolCopies,
        provider: SemBlendProvider,
        ranks: MeetingRanks,
        chains: TreeChains | None,
    ) -> None:
        self.chains = chains
        self._tree = tree
        self._copies = copies
        self._provider = provider
        self._ranks = ranks

    def load(
        self, plan: Plan, tokens: TokenArray, following: Following | None = None
    ) -> PrivateLoad:
        """Slots for the plan's region, with its spans in place, on every rank or on none.

        `following` has the tokens that the plan continues.

        Raises
        ------
        DonorsLostError
            Naming the donors that are gone.
        CapacityError
            If the pool has no room left.
        RanksPartError
            If that is so on some ranks alone.
        """
        with ExitStack() as locks, self._ranks.together():
            donors = self._resolve(plan, locks)
            continued = self._continued(plan, tokens, following, locks)
            self._ranks.meet()  # taking slots evicts
            slots = self.take(plan.end - plan.exact_tokens)
            try:
                self._copies.place(plan, tokens, donors, slots, continued=continued)
                self._ranks.meet()
            except BaseException:
                self.give_back(slots)
                raise
        return PrivateLoad(plan=plan, slots=slots)

    @fault_point(FaultPoint.POOL)
    def take(self, count: int) -> torch.Tensor:
        """At least `count` free slots, in whole pages; the tree makes room.

        Raises
        ------
        CapacityError
            If the pool has no room left.
        """
        page = self._tree.page_size
        count = -(-count // page) * page
        slots = self._tree.take(count)
        if slots is None:
            raise CapacityError(f"no {count} slots are free")
        return slots

    def give_back(self, slots: torch.Tensor) -> None:
        """Free slots that no request uses."""
        self._tree.give_back(slots)

    def _resolve(self, plan: Plan, locks: ExitStack) -> dict[str, DonorSlots]:
        """Every donor of the plan, its path locked."""
        reach: dict[str, int] = {}
        for span in plan.copies:
            reach[span.donor_id] = max(reach.get(span.donor_id, 0), span.donor_end)
        found, lost = {}, []
        for donor_id, end in reach.items():
            donor = self._slots_of(donor_id, end, locks)
            if donor is None:
                lost.append(donor_id)
            else:
                found[donor_id] = donor
        if lost:
            raise DonorsLostError(lost, f"no longer in the tree: {', '.join(lost)}")
        return found

    def _continued(
        self, plan: Plan, tokens: TokenArray, following: Following | None, locks: ExitStack
    ) -> torch.Tensor | None:
        """Slots of what the plan continues, their path locked."""
        if not plan.continued_tokens:
            return None
        found = None
        if following is not None and self.chains is not None:
            found = self.chains.slots(following, tokens, locks)
        if found is None or len(found) != plan.continued_tokens:
            raise DonorsLostError([], "the conversation is no longer in the tree")
        return found

    @fault_point(FaultPoint.LEASE)
    def _slots_of(self, donor_id: str, end: int, locks: ExitStack) -> DonorSlots | None:
        donor = self._provider.donor(donor_id)
        if donor is None:
            return None
        page = self._tree.page_size
        whole = min(-(-end // page) * page, len(donor.tokens))
        path = self._tree.find(
            donor.tokens[:whole], extra_key=donor.extra_key, cache_salt=donor.cache_salt
        )
        if path.tokens < end:
            return None
        locks.callback(path.lock())
        return DonorSlots(tokens=donor.tokens, slots=path.slots()[:end])
