"""SGLang's HiCache beside our spans: its host copies of exact prefixes, our loads on the device.

Both say "tokens in host memory" to the scheduler, which asks `init_load_back` for them and then,
without naming a request, who owns what was loaded. A request is served by one of the two: where the
tree has a host hit of its own, that is exact and ours is not offered.

HiCache fills its tiers from nodes of the tree. Slots that we load belong to no node, because their
request is barred from the tree, so approximate K/V reaches neither of its tiers.

What it brings back is in its slots only some time after the tree says so. Nothing is copied from
the tree in between: it might be such a slot.
"""

from __future__ import annotations

import inspect
from typing import Any

from semblend.integration.refusals import Refusal

PATIENCE = 32
"""Times a request waits for HiCache's loads to end before it is computed."""


def hicache_refusals(arguments: Any) -> list[Refusal]:
    """Why spans must not be loaded beside HiCache as it is set up; asked of SGLang's sources."""
    if not getattr(arguments, "enable_hierarchical_cache", False):
        return []
    refusals = []
    if getattr(arguments, "hicache_storage_backend", None):
        refusals.append(Refusal(feature="hierarchical cache with a storage backend"))
    mode = getattr(arguments, "hicache_host_memory_mode", None)
    if mode == "buffer_only":
        refusals.append(Refusal(feature=f"hierarchical cache with host memory mode {mode}"))
    problems = _problems()
    return [*refusals, *(Refusal(feature=f"hierarchical cache: {each}") for each in problems)]


class HostTier:
    """What of HiCache the tree's nodes are waiting for."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._waited: dict[str, int] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return getattr(self._cache, "cache_controller", None) is not None

    @property
    def is_loading(self) -> bool:
        """Whether slots of the tree may not hold their K/V yet."""
        return self.is_on and bool(self._cache.ongoing_load_back)

    def may_wait(self, request_id: str) -> bool:
        """Count a wait; false once a request has waited long enough."""
        self._waited[request_id] = self._waited.get(request_id, 0) + 1
        return self._waited[request_id] <= PATIENCE

    def forget(self, request_id: str) -> None:
        """It was loaded for, or it is gone."""
        self._waited.pop(request_id, None)


def _problems() -> list[str]:
    """What is not as this page of ours says it is."""
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.mem_cache import common
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    problems = []
    tree, adder = inspect.getsource(UnifiedRadixCache), inspect.getsource(PrefillAdder)
    owned, loads = ".load_back_is_cache_owned()", ".init_load_back("
    if adder.count(owned) != 1 or adder.count(loads) != 1 or adder.find(owned) < adder.find(loads):
        problems.append("the owner of a load is not asked once, after it")
    if "self.ongoing_load_back[node_id] = " not in tree:
        problems.append("loads that are under way are not known")
    if inspect.getsource(common).count("not req.skip_radix_cache_insert") < 2:
        problems.append("requests cannot be barred from the tree")
    return problems
