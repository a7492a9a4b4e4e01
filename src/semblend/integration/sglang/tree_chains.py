"""Conversations over approximate K/V, kept in SGLang's tree under keys that nobody can ask for.

A request that reused K/V is barred from the tree. When it ends, what it owns of its K/V (all behind
the tree's exact prefix) is inserted nevertheless, under a random `extra_key`, by which SGLang keeps
namespaces apart: no request can name it, so none matches it. The tree counts these slots and evicts
them like any others. A request that continues the conversation token for token (`core/chain.py`)
gets a copy in slots of its own, and what it adds is inserted behind it when it ends.

HiCache and K/V events publish whatever enters the tree, so nothing is kept where one of them is on,
nor on several ranks.
"""

from __future__ import annotations

import inspect
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from semblend.core.chain import Link
from semblend.core.chain_table import ChainTable, PromptNames
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.request import Continuation
from semblend.integration.sglang.radix_keys import lookup, radix_key
from semblend.integration.sglang.request_state import State

_UNIT = 64
"""Tokens that are counted together; the table names no more of them than the pool has room for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeChain:
    """A finished request whose K/V from `start` on is in the tree under a key of its own."""

    link: Link
    prompt_key: bytes
    private_key: str
    start: int
    """Tokens before this one are under the request's public key, if anywhere."""
    units: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Following:
    """What a request takes from a chain: tokens [start, end), behind its exact prefix."""

    chain: TreeChain
    start: int
    end: int

    @property
    def continuation(self) -> Continuation:
        """The same as shared code has it."""
        return Continuation(exact_tokens=self.start, turns=self.chain.link.turns)


class TreeChains:
    """Keeps chains in one tree, and finds what a request continues."""

    def __init__(self, cache: Any, rules: ChainRules, *, max_turns: int) -> None:
        self._cache = cache
        self._rules = rules
        self._page = int(cache.page_size)
        self._names = PromptNames()
        self._table: ChainTable[TreeChain] = ChainTable(
            block_size=self._page,
            max_units=max(1, int(cache.token_to_kv_pool_allocator.size) // _UNIT),
            max_turns=max_turns,
            dropped=lambda chain: self._names.drop(chain.link),
        )

    def __len__(self) -> int:
        return len(self._table)

    def find(
        self, state: State, tokens: TokenArray, exact_tokens: int, *, most: int
    ) -> Following | None:
        """What a prompt continues beyond its exact prefix, as far as the tree still has it.

        `most` tokens of it may be present.
        """
        if not len(self) or not self._rules.may_follow(state):
            return None
        follower = self._rules.follower(state, tokens)
        found = self._table.find(follower, self._names.keys(follower))
        if found is None:
            return None
        chain, end = found
        end = min(end, most // self._page * self._page)
        if not chain.start <= exact_tokens < end:
            return None  # its front was evicted, or is exact by now
        held = self._match(chain, tokens[:end]).device_prefix_len
        end = chain.start + int(held)
        if end <= exact_tokens:
            return None
        return Following(chain=chain, start=exact_tokens, end=end)

    def slots(
        self, following: Following, tokens: TokenArray, locks: list[Any]
    ) -> torch.Tensor | None:
        """Where the K/V it takes is, int64 [end - start], and a lock on it; None if it is gone."""
        chain = following.chain
        match = self._match(chain, tokens[: following.end])
        if chain.start + match.device_prefix_len < following.end:
            return None
        node = match.last_device_node
        locks.append(self._cache.lock(node))
        root = self._cache.root_node_handle(chain.private_key)
        path: torch.Tensor = self._cache.tree_core.collect_full_device_indices(node, root)
        return path[following.start - chain.start : following.end - chain.start]

    def keep(self, request: Any, state: State) -> None:
        """A request has ended, and its row is about to be freed: let the tree have what is its own.

        From then on the row must not free it. That is said first: should the tree fail, slots are
        lost rather than given away twice.
        """
        load, following = state.handle.load, state.handle.following
        start = int(request.kv.cache_protected_len)
        if (
            load is None
            or load.plan.exact_tokens != start
            or not state.is_approximate
            or not request.output_ids
            or _was_aborted(request)
            or not self._rules.may_keep(state)
        ):
            return
        tokens = np.array([*request.origin_input_ids, *request.output_ids], dtype=np.int32)
        computed = min(request.owned_kv_len(), len(tokens) - 1)
        end = start + (computed - start) // self._page * self._page
        if end <= start:
            return
        private_key = self._key_for(following, tokens[:end], start)
        link = self._rules.link(state, tokens, computed_tokens=end, exact_tokens=start)
        chain = TreeChain(
            link=link,
            prompt_key=self._names.key(link),
            private_key=private_key,
            start=start,
            units=tuple((private_key, unit) for unit in range(-(-(end - start) // _UNIT))),
        )
        row = self._cache.req_to_token_pool.req_to_token[request.kv.req_pool_idx, start:end]
        slots = row.to(torch.int64, copy=True)
        key = radix_key(tokens[start:end], extra_key=private_key)
        request.kv.cache_protected_len = end
        self._insert(key, slots, priority=request.priority or 0)
        self._names.add(link)
        self._table.add(chain)

    def _key_for(self, following: Following | None, tokens: TokenArray, start: int) -> str:
        """The key of the conversation it went on from, if it adds to that and repeats nothing.

        What the tree has of these tokens beyond what was taken over was computed by somebody else.
        """
        if following is not None and following.chain.start == start:
            held = start + self._match(following.chain, tokens).device_prefix_len
            if held <= following.end:
                return following.chain.private_key
        return f"semblend-{secrets.token_hex(16)}"

    def clear(self) -> None:
        """The tree was emptied."""
        self._table.clear()

    def _match(self, chain: TreeChain, tokens: TokenArray) -> Any:
        return self._cache.match_prefix(lookup(tokens[chain.start :], extra_key=chain.private_key))

    def _insert(self, key: Any, slots: torch.Tensor, *, priority: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        self._cache.insert(InsertParams(key=key, value=slots, priority=priority))


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


def _was_aborted(request: Any) -> bool:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return not request.finished() or isinstance(request.finished_reason, FINISH_ABORT)
