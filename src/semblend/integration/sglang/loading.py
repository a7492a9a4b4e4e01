"""Loading a plan: donors found again and locked, slots taken, spans put in place.

All of it happens when the scheduler admits the request, in this order: donors are looked
up in the tree and locked, because taking slots evicts; then slots are taken; then K/V
is copied; then the locks go. Nothing is held afterwards but the request's own slots, so
a load never narrows what the scheduler counted on when it admitted others.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import torch

from semblend.core.errors import CapacityError, DonorError
from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Plan, Span
from semblend.core.tokens import TokenArray
from semblend.integration.provider import DonorRecord, DonorsLostError, SemBlendProvider
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.request_state import PrivateLoad
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.transfer import SpanCopy
from semblend.planning.depth import drift_for
from semblend.planning.policies.base import policy_from_spec


class SpanLoader:
    """Carries plans out in the tree's own pool."""

    def __init__(
        self,
        cache: Any,
        pool: KvPool,
        provider: SemBlendProvider,
        drift: DepthDrift | None = None,
    ) -> None:
        """`drift` is what policies that shift depths go by."""
        self._drift = None if drift is None else drift.to(pool.device)
        self._cache = cache
        self._pool = pool
        self._provider = provider

    def load(self, plan: Plan, tokens: TokenArray) -> PrivateLoad:
        """Slots for the plan's region, with its spans in place.

        Raises
        ------
        DonorsLostError
            Naming the donors that are gone.
        CapacityError
            If the pool has no room left.
        """
        locks: list[Any] = []
        try:
            sources = self._resolve(plan, tokens, locks)
            slots = self.take(plan.end - plan.exact_tokens)
            try:
                self._copy(plan, sources, slots)
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

    def _resolve(self, plan: Plan, tokens: TokenArray, locks: list[Any]) -> dict[str, torch.Tensor]:
        """Slots of every donor of the plan, [donor tokens], its path locked."""
        reach: dict[str, int] = {}
        for span in plan.copies:
            reach[span.donor_id] = max(reach.get(span.donor_id, 0), span.donor_end)
        found, lost = {}, []
        for donor_id, end in reach.items():
            slots = self._slots_of(donor_id, end, locks)
            if slots is None:
                lost.append(donor_id)
            else:
                found[donor_id] = slots
        if lost:
            raise DonorsLostError(lost, f"no longer in the tree: {', '.join(lost)}")
        for span in plan.copies:
            self._check_tokens(span, tokens)
        return found

    @fault_point(FaultPoint.LEASE)
    def _slots_of(self, donor_id: str, end: int, locks: list[Any]) -> torch.Tensor | None:
        donor = self._provider.donor(donor_id)
        if donor is None:
            return None
        page = self._cache.page_size
        whole = min(-(-end // page) * page, len(donor.tokens))
        match = self._cache.match_prefix(_lookup(donor, whole))
        if match.device_prefix_len < end:
            return None
        node = match.last_device_node
        locks.append(self._cache.lock(node))
        root = self._cache.root_node_handle(donor.extra_key)
        path: torch.Tensor = self._cache.tree_core.collect_full_device_indices(node, root)
        return path[:end]

    def _check_tokens(self, span: Span, tokens: TokenArray) -> None:
        """Tokens are compared once more with the donor that is really here."""
        donor = self._provider.donor(span.donor_id)
        theirs = None if donor is None else donor.tokens[span.donor_start : span.donor_end]
        if theirs is None or not np.array_equal(
            theirs, tokens[span.target_start : span.target_end]
        ):
            raise DonorsLostError([span.donor_id], f"{span.donor_id} holds other tokens")

    def _copy(self, plan: Plan, sources: dict[str, torch.Tensor], slots: torch.Tensor) -> None:
        start, parts = plan.exact_tokens, [*sources.values(), slots]
        edges = np.cumsum([len(part) for part in parts])[:-1]
        # Plans are checked on the host: all slots are brought there at once.
        *donors, own = np.split(torch.cat(parts).cpu().numpy(), edges)
        theirs = dict(zip(sources, donors, strict=True))
        copies = [
            SpanCopy(
                source=self._pool.slots,
                source_slots=theirs[span.donor_id][span.donor_start : span.donor_end],
                target_slots=own[span.target_start - start : span.target_end - start],
                source_start=span.donor_start,
                target_start=span.target_start,
            )
            for span in plan.copies
        ]
        drift = drift_for(policy_from_spec(plan.policy), self._drift)
        copied = self._pool.copy(copies, drift)
        if copied != plan.reused_tokens:
            raise DonorError(f"{plan.reused_tokens} tokens planned, {copied} copied")


def _lookup(donor: DonorRecord, tokens: int) -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    ids = array("q", donor.tokens[:tokens].tolist())
    key = RadixKey(ids, extra_key=donor.extra_key, cache_salt=donor.cache_salt)
    return MatchPrefixParams(key=key)
