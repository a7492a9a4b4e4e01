"""Loading a plan: donors found again and locked, slots taken, spans put in place.

All of it happens when the scheduler admits the request, in this order: donors are looked
up in the tree and locked, because taking slots evicts; then slots are taken; then K/V
is copied; then the locks go. Nothing is held afterwards but the request's own slots, so
a load never narrows what the scheduler counted on when it admitted others.
"""

from __future__ import annotations

from typing import Any

import torch

from semblend.core.errors import CapacityError
from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.provider import DonorsLostError, SemBlendProvider
from semblend.integration.sglang.radix_keys import lookup
from semblend.integration.sglang.request_state import PrivateLoad
from semblend.integration.sglang.tree_chains import Following, TreeChains
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.pool_copies import DonorSlots, PoolCopies


class SpanLoader:
    """Carries plans out in the tree's own pool."""

    def __init__(
        self,
        cache: Any,
        copies: PoolCopies,
        provider: SemBlendProvider,
        ranks: MeetingRanks,
        chains: TreeChains | None,
    ) -> None:
        self.chains = chains
        self._cache = cache
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
        locks: list[Any] = []
        try:
            with self._ranks.together():
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
        finally:
            for lock in locks:
                self._cache.unlock(lock)
        return PrivateLoad(plan=plan, slots=slots)

    @fault_point(FaultPoint.POOL)
    def take(self, count: int) -> torch.Tensor:
        """At least `count` free slots, in whole pages; the tree makes room.

        Raises
        ------
        CapacityError
            If the pool has no room left.
        """
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        page = self._cache.page_size
        count = -(-count // page) * page
        evict_from_tree_cache(self._cache, count)
        slots: torch.Tensor | None = self._cache.token_to_kv_pool_allocator.alloc(count)
        if slots is None:
            raise CapacityError(f"no {count} slots are free")
        return slots.to(torch.int64)

    def give_back(self, slots: torch.Tensor) -> None:
        """Free slots that no request uses."""
        self._cache.token_to_kv_pool_allocator.free(slots)

    def _resolve(self, plan: Plan, locks: list[Any]) -> dict[str, DonorSlots]:
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
        self, plan: Plan, tokens: TokenArray, following: Following | None, locks: list[Any]
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
    def _slots_of(self, donor_id: str, end: int, locks: list[Any]) -> DonorSlots | None:
        donor = self._provider.donor(donor_id)
        if donor is None:
            return None
        page = self._cache.page_size
        whole = min(-(-end // page) * page, len(donor.tokens))
        match = self._cache.match_prefix(
            lookup(donor.tokens[:whole], extra_key=donor.extra_key, cache_salt=donor.cache_salt)
        )
        if match.device_prefix_len < end:
            return None
        node = match.last_device_node
        locks.append(self._cache.lock(node))
        root = self._cache.root_node_handle(donor.extra_key)
        path: torch.Tensor = self._cache.tree_core.collect_full_device_indices(node, root)
        return DonorSlots(tokens=donor.tokens, slots=path[:end])
