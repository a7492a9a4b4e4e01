"""Approximate K/V of conversations, kept only for requests that continue them.

`core/chain.py` defines which requests those are. Exact K/V of the same tokens is found in the
prefix cache; this K/V is found only by the chain rule.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np

from semblend.core.chain import Follower, Link, furthest
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageAllocator, PageIds
from semblend.engine.cache.prefix_cache import page_keys
from semblend.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class Chain:
    """The retained K/V of one finished request."""

    link: Link
    pages: PageIds
    """Full pages from the start, one reference to each."""
    namespace: Namespace
    request_id: str
    promoted_tokens: int = field(default=0, init=False)
    """Tokens computed exactly for it so far, including any lost again."""

    @property
    def tokens(self) -> TokenArray:
        """Tokens whose K/V was computed."""
        return self.link.tokens[: self.link.computed_tokens]


class Chains:
    """Holds chains up to a limit and evicts the oldest first. Used by the engine's thread only.

    A chain's pages are never written. A request that continues it takes references to full pages
    and writes to its own, so a conversation can fork and neither branch sees the other.
    """

    def __init__(
        self, allocator: PageAllocator, page_size: int, *, max_pages: int, max_turns: int
    ) -> None:
        self._allocator = allocator
        self._page_size = page_size
        self._max_pages = max_pages
        self._max_turns = max_turns
        self._chains: OrderedDict[int, Chain] = OrderedDict()
        self._by_prompt: dict[bytes, list[Chain]] = {}
        self._held: Counter[int] = Counter()
        """Number of chains holding each page."""

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def pages(self) -> int:
        """Number of distinct pages held."""
        return len(self._held)

    def keep(self, sequence: Sequence) -> bool:
        """Keep the K/V of a finished request. Returns whether it can now be continued."""
        table, key = sequence.table, sequence.share_key
        if table is None or key is None or not sequence.request.donate or not sequence.output_ids:
            return False
        computed = sequence.length - 1
        pages = table.pages[: computed // self._page_size].copy()
        if not pages.size or pages.size > self._max_pages:
            return False
        link = Link(
            share_key=key,
            tokens=sequence.tokens_between(0, sequence.length).copy(),
            prompt_tokens=sequence.prompt_tokens,
            computed_tokens=computed,
            exact_tokens=sequence.exact_until,
            turns=sequence.turns + 1,
            policy=sequence.request.policy,
        )
        for twin in self._of_prompt(link):
            if np.array_equal(twin.link.tokens, link.tokens):
                self.drop(twin)
        chain = Chain(
            link=link,
            pages=pages,
            namespace=sequence.request.namespace,
            request_id=sequence.request.request_id,
        )
        self._allocator.retain(pages)
        self._held.update(pages.tolist())
        self._chains[id(chain)] = chain
        self._by_prompt.setdefault(self._prompt_key(link), []).append(chain)
        # A chain may share all its pages with others, so the number of chains is limited too.
        while self.pages > self._max_pages or len(self) > self._max_pages:
            self.drop(next(iter(self._chains.values())))
        return True

    def find(self, follower: Follower) -> tuple[Chain, int] | None:
        """The chain that a request continues furthest, and by how many tokens."""
        if not self._chains:
            return None
        size, share_key = self._page_size, follower.share_key
        keys = (share_key, *page_keys(share_key, follower.tokens, size))
        kept = (chain for key in keys for chain in self._by_prompt.get(key, ()))
        return furthest(kept, follower, block_size=size, max_turns=self._max_turns)

    def used_again(self) -> tuple[Chain, ...]:
        """Chains of conversations that went on, oldest first."""
        return tuple(chain for chain in self._chains.values() if chain.link.turns > 1)

    def became_exact(self, share_key: bytes, tokens: TokenArray) -> None:
        """Drop chains that hold nothing beyond `tokens`, whose exact K/V is now available."""
        for chain in tuple(self._chains.values()):
            mine = chain.tokens
            if chain.link.share_key == share_key and np.array_equal(mine, tokens[: len(mine)]):
                self.drop(chain)

    def evict(self, pages: int) -> int:
        """Drop chains, oldest first, until this many of their pages are available.

        Those pages are then free, or held only by the prefix cache, which releases them on demand.
        """
        had = 0
        while self._chains and had < pages:
            chain = next(iter(self._chains.values()))
            mine = [page for page in chain.pages.tolist() if self._held[page] == 1]
            self.drop(chain)
            had += sum(self._allocator.references(page) <= 1 for page in mine)
        return had

    def drop(self, chain: Chain) -> None:
        """Drop one chain; does nothing if it is already gone."""
        if self._chains.pop(id(chain), None) is None:
            return
        key = self._prompt_key(chain.link)
        left = [other for other in self._by_prompt[key] if other is not chain]
        if left:
            self._by_prompt[key] = left
        else:
            del self._by_prompt[key]
        for page in chain.pages.tolist():
            self._held[page] -= 1
            if not self._held[page]:
                del self._held[page]
        self._allocator.release(chain.pages)

    def clear(self) -> int:
        """Drop all chains and return how many there were."""
        count = len(self)
        for chain in tuple(self._chains.values()):
            self.drop(chain)
        return count

    def _prompt_key(self, link: Link) -> bytes:
        """Lookup key of a chain: what a follower's prompt is sure to share with it."""
        prompt = link.tokens[: link.prompt_tokens]
        return (link.share_key, *page_keys(link.share_key, prompt, self._page_size))[-1]

    def _of_prompt(self, link: Link) -> tuple[Chain, ...]:
        return tuple(self._by_prompt.get(self._prompt_key(link), ()))
