"""SGLang's tree and pool as shared code asks for them.

HiCache and K/V events publish whatever enters the tree, so no conversation is kept there where one
of them is on, nor on several ranks (`chain_problems`).
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from semblend.core.tokens import TokenArray

if TYPE_CHECKING:
    import torch  # the plugin reads this in every process of SGLang's


def radix_key(tokens: TokenArray, *, extra_key: str | None, cache_salt: str | None = None) -> Any:
    """The key of these tokens, in the namespace of the others."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    # From bytes: number by number, a long prompt would take milliseconds of the scheduler's time.
    ids = array("q", tokens.astype(np.int64).tobytes())
    return RadixKey(ids, extra_key=extra_key, cache_salt=cache_salt)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RadixPath:
    """From the root of a namespace to a node."""

    cache: Any
    node: Any
    extra_key: str | None
    tokens: int

    def lock(self) -> Callable[[], None]:
        """Keep it on the device, until what is returned is called."""
        return partial(self.cache.unlock, self.cache.lock(self.node))

    def slots(self) -> torch.Tensor:
        """Where its K/V is, int64 [tokens]."""
        root = self.cache.root_node_handle(self.extra_key)
        path: torch.Tensor = self.cache.tree_core.collect_full_device_indices(self.node, root)
        return path


class RadixTree:
    """The tree of a cache, asked on nobody's behalf."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._pool = cache.token_to_kv_pool_allocator
        self.page_size, self.slot_count = int(cache.page_size), int(self._pool.size)

    def find(
        self, tokens: TokenArray, *, extra_key: str | None, cache_salt: str | None = None
    ) -> RadixPath:
        """What is on the device of these tokens, under these keys."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        key = radix_key(tokens, extra_key=extra_key, cache_salt=cache_salt)
        match = self._cache.match_prefix(MatchPrefixParams(key=key))
        return RadixPath(
            cache=self._cache,
            node=match.last_device_node,
            extra_key=extra_key,
            tokens=int(match.device_prefix_len),
        )

    def take(self, count: int) -> torch.Tensor | None:
        """Free slots, int64 [count]; the tree makes room."""
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        evict_from_tree_cache(self._cache, count)
        slots: torch.Tensor | None = self._pool.alloc(count)
        return None if slots is None else slots.long()

    def give_back(self, slots: torch.Tensor) -> None:
        """Free slots that no request uses."""
        self._pool.free(slots)


class EndedRequest:
    """A request that has ended, before its row is freed."""

    def __init__(self, cache: Any, request: Any) -> None:
        self._cache = cache
        self._request = request
        self.start = int(request.kv.cache_protected_len)

    @property
    def computed_tokens(self) -> int:
        """Tokens whose K/V the row holds."""
        return int(self._request.owned_kv_len())

    @cached_property
    def tokens(self) -> TokenArray:
        """Its prompt and its answer."""
        ids = [*self._request.origin_input_ids, *self._request.output_ids]
        return np.array(ids, dtype=np.int32)

    def hand_over(self, end: int, *, extra_key: str) -> None:
        """Let the tree have the slots of [start, end); the row no longer frees them."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        request, start = self._request, self.start
        row = self._cache.req_to_token_pool.req_to_token[request.kv.req_pool_idx, start:end]
        slots = row.clone().long()
        key = radix_key(self.tokens[start:end], extra_key=extra_key)
        request.kv.cache_protected_len = end
        self._cache.insert(InsertParams(key=key, value=slots, priority=request.priority or 0))


def has_answered(request: Any) -> bool:
    """Whether a request has ended with an answer of its own."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    ended = request.finished() and not isinstance(request.finished_reason, FINISH_ABORT)
    return ended and bool(request.output_ids)


def chain_problems(arguments: Any, params: Any) -> list[str]:
    """Why nothing may be kept for conversations in a tree made with these."""
    from sglang.srt.mem_cache import common

    problems = []
    if getattr(arguments, "enable_hierarchical_cache", False):
        problems.append("HiCache copies whatever the tree holds")
    if params.enable_kv_cache_events:
        problems.append("K/V events name whatever the tree holds")
    if getattr(arguments, "tp_size", 1) > 1:
        problems.append("the ranks would have to keep the same conversations")
    release = inspect.getsource(common.release_kv_cache)
    asked, freed = (release.find(part) for part in (".claim_kv_row(", ".free_kv_row("))
    if not 0 <= asked < freed or "(req.kv.cache_protected_len, owned_kv_len)" not in release:
        problems.append("SGLang frees rows in another way")
    return problems
