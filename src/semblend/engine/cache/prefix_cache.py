"""Exact prefix reuse: pages with exactly computed K/V, found by their tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from semblend.core.errors import CapacityError
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageAllocator, PageIds


@dataclass(frozen=True, slots=True)
class _Entry:
    page: int
    tokens: TokenArray
    parent: bytes


class PrefixCache:
    """Full pages by the chained hash of everything up to their end.

    Two invariants hold. A page is served only after its tokens, and those of every page before it,
    were compared; a hash is only a hint. And pages enter only through :meth:`publish`, whose caller
    guarantees that they were computed exactly. The engine stops publishing at a request's first
    reused token.

    The cache holds one reference to each of its pages. When the pool runs short, it releases pages
    that nothing else holds, least recently used first.
    """

    def __init__(self, allocator: PageAllocator, page_size: int) -> None:
        self._allocator = allocator
        self._page_size = page_size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, namespace_key: bytes, tokens: TokenArray) -> PageIds:
        """Pages of the longest cached prefix of `tokens`. The caller gets a reference to each.

        At least one token is left over, because its logits are needed.
        """
        pages: list[int] = []
        keys: list[bytes] = []
        size, parent = self._page_size, namespace_key
        keyed = page_keys(namespace_key, tokens[:-1], size)
        for start, key in zip(range(0, len(tokens) - size, size), keyed, strict=True):
            block = tokens[start : start + size]
            entry = self._entries.get(key)
            if entry is None or entry.parent != parent or not np.array_equal(entry.tokens, block):
                break
            pages.append(entry.page)
            keys.append(key)
            parent = key
        found = np.asarray(pages, dtype=np.int32)
        self._allocator.retain(found)
        self._touch(keys)
        return found

    def publish(self, namespace_key: bytes, tokens: TokenArray, pages: PageIds) -> int:
        """Offer the full pages of exactly computed `tokens`. Returns how many were new.

        `pages` are the request's, in order. The caller holds them.
        """
        size, parent, added = self._page_size, namespace_key, 0
        keys: list[bytes] = []
        for index in range(len(tokens) // size):
            block = tokens[index * size : (index + 1) * size]
            key = _chain(parent, block)
            entry = self._entries.get(key)
            if entry is None:
                page = pages[index : index + 1]
                self._allocator.retain(page)
                self._entries[key] = _Entry(int(page[0]), block.copy(), parent)
                added += 1
            elif entry.parent != parent or not np.array_equal(entry.tokens, block):
                break  # a collision: keep the existing page
            keys.append(key)
            parent = key
        self._touch(keys)
        return added

    def evict(self, pages: int) -> int:
        """Release up to `pages` pages that nothing else holds. Returns how many."""
        freed = 0
        for key in list(self._entries):
            if freed == pages:
                break
            page = self._entries[key].page
            if self._allocator.references(page) == 1:
                del self._entries[key]
                self._allocator.release(np.asarray([page], dtype=np.int32))
                freed += 1
        return freed

    def clear(self) -> int:
        """Drop everything and return how many pages were held."""
        held = np.asarray([entry.page for entry in self._entries.values()], dtype=np.int32)
        self._entries.clear()
        self._allocator.release(held)
        return len(held)

    def _touch(self, keys: list[bytes]) -> None:
        # Deepest first, so that a page is never older than one that depends on it.
        for key in reversed(keys):
            self._entries.move_to_end(key)


class Spare(Protocol):
    """Holds pages in case they are needed again."""

    def evict(self, pages: int) -> int:
        """Release up to this many pages, or let the next holder do so. Returns how many."""
        ...


def take_pages(allocator: PageAllocator, *spare: Spare | None, count: int) -> PageIds | None:
    """Allocate `count` pages, evicting from `spare` in order if needed; None if too few.

    A pool in use fills up with kept pages, so all allocations go through here.
    """
    for holder in spare:
        if count > allocator.free and holder is not None:
            holder.evict(count - allocator.free)
    try:
        return allocator.allocate(count)
    except CapacityError:
        return None


def page_keys(namespace_key: bytes, tokens: TokenArray, page_size: int) -> Iterator[bytes]:
    """For each full page of `tokens`, the hash of everything up to its end."""
    key = namespace_key
    for start in range(0, len(tokens) - page_size + 1, page_size):
        key = _chain(key, tokens[start : start + page_size])
        yield key


def _chain(parent: bytes, block: TokenArray) -> bytes:
    return xxhash.xxh3_128_digest(parent + np.ascontiguousarray(block).tobytes())
