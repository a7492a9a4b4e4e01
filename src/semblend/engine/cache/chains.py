"""Approximate K/V of conversations, kept only for requests that continue them.

`core/chain.py` defines which requests those are. Exact K/V of the same tokens is found in the
prefix cache; this K/V is found only by the chain rule. A chain holds no exact pages where there is
a prefix cache: that one keeps them, and a chain whose exact pages are gone is not continued.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semblend.core.chain import Follower, Link
from semblend.core.chain_table import ChainTable
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageAllocator, PageIds
from semblend.engine.cache.prefix_cache import page_keys
from semblend.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class Chain:
    """The retained K/V of one finished request."""

    link: Link
    prompt_key: bytes
    first_page: int
    """Full pages before its own; the prefix cache holds them."""
    pages: PageIds
    """Its own full pages, one reference to each."""
    namespace: Namespace
    request_id: str
    promoted_tokens: int = field(default=0, init=False)
    """Tokens computed exactly for it so far, including any lost again."""

    @property
    def units(self) -> list[int]:
        """Its pages, for the table."""
        pages: list[int] = self.pages.tolist()
        return pages

    @property
    def tokens(self) -> TokenArray:
        """Tokens whose K/V was computed."""
        return self.link.tokens[: self.link.computed_tokens]


class Chains:
    """Holds chains up to a limit. Used by the engine's thread only.

    The one that was unused longest is evicted first.

    A chain's pages are never written. A request that continues it takes references to full pages
    and writes to its own, so a conversation can fork and neither branch sees the other.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        *,
        max_pages: int,
        max_turns: int,
        prefix_cache: bool,
    ) -> None:
        """`prefix_cache` says whether something else keeps exact pages."""
        self._allocator = allocator
        self._page_size = page_size
        self._max_pages = max_pages
        self._max_turns = max_turns
        self._prefix_cache = prefix_cache
        self._table: ChainTable[Chain] = ChainTable(
            block_size=page_size,
            max_units=max_pages,
            max_turns=max_turns,
            dropped=lambda chain: allocator.release(chain.pages),
        )

    def __len__(self) -> int:
        return len(self._table)

    @property
    def pages(self) -> int:
        """Number of distinct pages held."""
        return self._table.units

    def most_tokens(self, exact_tokens: int) -> int:
        """How many leading tokens of a request the next turn may take over."""
        if self._max_turns == 1:
            return exact_tokens
        return (self._first_page(exact_tokens) + self._max_pages) * self._page_size

    def keep(self, sequence: Sequence) -> bool:
        """Keep the K/V of a finished request. Returns whether it can now be continued.

        Of a request that is larger than the limit, the beginning is kept.
        """
        table, key, exact = sequence.table, sequence.share_key, sequence.exact_until
        if table is None or key is None or not sequence.request.donate or not sequence.output_ids:
            return False
        first = self._first_page(exact)
        computed = min(sequence.length - 1, self.most_tokens(exact))
        pages = table.pages[first : computed // self._page_size].copy()
        if not self._table.takes(pages.size):
            return False
        tokens = sequence.tokens_between(0, sequence.length).copy()
        chain = Chain(
            link=Link(
                share_key=key,
                tokens=tokens,
                prompt_tokens=sequence.prompt_tokens,
                computed_tokens=computed,
                exact_tokens=exact,
                turns=sequence.turns + 1,
                policy=sequence.request.policy,
            ),
            prompt_key=self._keys(key, tokens[: sequence.prompt_tokens])[-1],
            first_page=first,
            pages=pages,
            namespace=sequence.request.namespace,
            request_id=sequence.request.request_id,
        )
        self._allocator.retain(pages)
        self._table.add(chain)
        return True

    def find(self, follower: Follower) -> tuple[Chain, int] | None:
        """The chain that a request continues furthest, and by how many tokens."""
        if not self._table:
            return None
        return self._table.find(follower, self._keys(follower.share_key, follower.tokens))

    def used_again(self) -> tuple[Chain, ...]:
        """Chains of conversations that went on, the longest unused first."""
        return self._table.used_again()

    def became_exact(self, share_key: bytes, tokens: TokenArray) -> None:
        """Drop chains that hold nothing beyond `tokens`, whose exact K/V is now available."""
        self._table.became_exact(share_key, tokens)

    def evict(self, pages: int) -> int:
        """Drop chains, the longest unused first, until this many of their pages are available.

        Those pages are then free, or held only by the prefix cache, which releases them on demand.
        """
        had = 0
        for chain in self._table:
            if had >= pages:
                break
            mine = [page for page in chain.units if self._table.holders(page) == 1]
            self.drop(chain)
            had += sum(self._allocator.references(page) <= 1 for page in mine)
        return had

    def drop(self, chain: Chain) -> None:
        """Drop one chain; does nothing if it is already gone."""
        self._table.drop(chain)

    def clear(self) -> int:
        """Drop all chains and return how many there were."""
        return self._table.clear()

    def _first_page(self, exact_tokens: int) -> int:
        return exact_tokens // self._page_size if self._prefix_cache else 0

    def _keys(self, share_key: bytes, tokens: TokenArray) -> tuple[bytes, ...]:
        return (share_key, *page_keys(share_key, tokens, self._page_size))
