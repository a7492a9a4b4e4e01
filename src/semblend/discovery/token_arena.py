"""All donors' token ids in one paged array.

Pages of 64 tokens are assigned in any order, so there is no fragmentation, and allocating or
freeing a chunk takes the same time however full the arena is. Links between a chunk's pages let one
gather read thousands of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.errors import CapacityError
from semblend.core.tokens import TokenArray
from semblend.discovery.fingerprints import IndexArray

PAGE_TOKENS = 64
_SHIFT = 6
_MASK = PAGE_TOKENS - 1
PAGE_BYTES = PAGE_TOKENS * 4 + 5 * 4
"""A page's tokens plus its links, owner, rank and free-list entry."""


@dataclass(frozen=True, slots=True)
class PageRun:
    """A chunk's pages in order, and its length in tokens."""

    pages: npt.NDArray[np.uint32]
    length: int


def pages_for(tokens: int) -> int:
    """Number of pages for this many tokens."""
    return -(-tokens // PAGE_TOKENS)


class TokenArena:
    """Every page is free or belongs to exactly one chunk.

    Parameters
    ----------
    pages
        Capacity. The operating system allocates the arrays lazily, so untouched
        pages take no memory.
    """

    def __init__(self, pages: int) -> None:
        self.capacity_pages = pages
        self._tokens: TokenArray = np.zeros(pages * PAGE_TOKENS, dtype=np.int32)
        self._next: npt.NDArray[np.uint32] = np.zeros(pages, dtype=np.uint32)
        self._previous: npt.NDArray[np.uint32] = np.zeros(pages, dtype=np.uint32)
        self._chunk: npt.NDArray[np.uint32] = np.zeros(pages, dtype=np.uint32)
        self._rank: npt.NDArray[np.uint32] = np.zeros(pages, dtype=np.uint32)
        self._free: npt.NDArray[np.uint32] = np.zeros(pages, dtype=np.uint32)
        self._freed = 0
        self._untouched = 0

    @property
    def free_pages(self) -> int:
        """Number of free pages."""
        return self._freed + self.capacity_pages - self._untouched

    def put(self, tokens: TokenArray, chunk: int) -> PageRun:
        """Store `tokens` as chunk number `chunk`.

        Raises
        ------
        CapacityError
            If too few pages are free. Nothing is taken then.
        """
        count = pages_for(tokens.size)
        if count > self.free_pages:
            raise CapacityError(f"token arena: {count} pages requested, {self.free_pages} free")
        recycled = min(count, self._freed)
        fresh = count - recycled
        pages = np.empty(count, dtype=np.uint32)
        pages[:recycled] = self._free[self._freed - recycled : self._freed]
        pages[recycled:] = np.arange(self._untouched, self._untouched + fresh, dtype=np.uint32)
        self._freed -= recycled
        self._untouched += fresh

        full = tokens.size >> _SHIFT
        rows = self._tokens.reshape(-1, PAGE_TOKENS)
        rows[pages[:full]] = tokens[: full << _SHIFT].reshape(-1, PAGE_TOKENS)
        if full < count:
            rest = tokens[full << _SHIFT :]
            rows[pages[full], : rest.size] = rest
        self._chunk[pages] = chunk
        self._rank[pages] = np.arange(count, dtype=np.uint32)
        # The ends link to themselves. Nothing reads beyond a chunk.
        self._next[pages[:-1]] = pages[1:]
        self._next[pages[-1:]] = pages[-1:]
        self._previous[pages[1:]] = pages[:-1]
        self._previous[pages[:1]] = pages[:1]
        return PageRun(pages, tokens.size)

    def give_back(self, run: PageRun) -> None:
        """Free a chunk's pages."""
        self._free[self._freed : self._freed + run.pages.size] = run.pages
        self._freed += run.pages.size

    def read(self, run: PageRun) -> TokenArray:
        """A copy of a chunk's tokens, shape [run.length]."""
        rows = self._tokens.reshape(-1, PAGE_TOKENS)[run.pages]
        return np.asarray(rows.reshape(-1)[: run.length], dtype=np.int32)

    def places(self, run: PageRun, offsets: IndexArray) -> IndexArray:
        """Arena places of offsets inside a chunk."""
        pages: IndexArray = run.pages[offsets >> _SHIFT].astype(np.int64)
        places: IndexArray = (pages << _SHIFT) | (offsets & _MASK)
        return places

    def owners(self, places: IndexArray) -> tuple[IndexArray, IndexArray]:
        """(chunk number, offset inside the chunk) of arena places."""
        pages = places >> _SHIFT
        offsets = (self._rank[pages].astype(np.int64) << _SHIFT) | (places & _MASK)
        return self._chunk[pages].astype(np.int64), offsets

    def around(self, places: IndexArray, before: IndexArray, after: IndexArray) -> TokenArray:
        """Tokens around places, concatenated: shape [sum(before + after)].

        For place i, the `before[i]` tokens in front of it and `after[i]` from it on, each at most a
        page. Tokens outside the chunk are arbitrary; the caller knows where it ends.
        """
        pages, inside = places >> _SHIFT, places & _MASK
        left = np.maximum(before - inside, 0)
        right = np.maximum(inside + after - PAGE_TOKENS, 0)
        # A place's tokens span up to three pages and are contiguous inside a page.
        first = np.empty((places.size, 3), dtype=np.int64)
        first[:, 0] = (self._previous[pages].astype(np.int64) << _SHIFT) + PAGE_TOKENS - left
        first[:, 1] = places - before + left
        first[:, 2] = self._next[pages].astype(np.int64) << _SHIFT
        sizes = np.stack((left, before + after - left - right, right), axis=1).reshape(-1)
        index = spread(first.reshape(-1), sizes)
        around: TokenArray = self._tokens.take(index, mode="clip")
        return around


def spread(first: IndexArray, sizes: IndexArray) -> IndexArray:
    """The ranges [first, first + size), concatenated: shape [sum(sizes)]."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    ranges: IndexArray = np.repeat(first - ends + sizes, sizes)
    ranges += np.arange(total)
    return ranges
