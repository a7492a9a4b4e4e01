"""Exact prefixes: found by tokens, verified by tokens, and given back under pressure."""

from __future__ import annotations

import numpy as np
import pytest

import semblend.engine.cache.prefix_cache as module
from semblend.engine.cache.pages import PageAllocator
from semblend.engine.cache.prefix_cache import PrefixCache
from tests.engine.models import random_tokens

SPACE, OTHER = b"a" * 16, b"b" * 16


def longer(tokens: np.ndarray) -> np.ndarray:
    """One token more: the last page of `tokens` may then be served whole."""
    return np.append(tokens, np.int32(5))


def filled(tokens: np.ndarray, pages: int = 32) -> tuple[PrefixCache, PageAllocator, np.ndarray]:
    allocator = PageAllocator(pages)
    cache = PrefixCache(allocator, 4)
    own = allocator.allocate(len(tokens) // 4)
    cache.publish(SPACE, tokens, own)
    return cache, allocator, own


def test_the_longest_whole_page_prefix_is_found_and_one_token_left_over() -> None:
    tokens = random_tokens(20, 1)
    cache, _, own = filled(tokens)
    assert cache.match(SPACE, tokens).tolist() == own[:4].tolist()
    assert cache.match(SPACE, longer(tokens)).tolist() == own.tolist()
    forked = np.append(tokens[:11], random_tokens(9, 2))
    assert cache.match(SPACE, forked).tolist() == own[:2].tolist()


def test_another_namespace_or_another_beginning_finds_nothing() -> None:
    tokens = random_tokens(20, 1)
    cache, _, _ = filled(tokens)
    assert cache.match(OTHER, tokens).size == 0
    changed = tokens.copy()
    changed[0] += 1
    assert cache.match(SPACE, changed).size == 0


def test_a_hash_collision_is_not_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_chain", lambda parent, block: b"same")
    cache, _, _ = filled(random_tokens(8, 1))
    assert cache.match(SPACE, random_tokens(9, 2)).size == 0
    assert len(cache) == 1


def test_pages_in_use_are_never_evicted_and_unused_ones_oldest_first() -> None:
    first, second = random_tokens(8, 1), random_tokens(8, 2)
    allocator = PageAllocator(8)
    cache = PrefixCache(allocator, 4)
    pages = [allocator.allocate(2) for _ in range(2)]
    cache.publish(SPACE, first, pages[0])
    cache.publish(SPACE, second, pages[1])
    allocator.release(pages[0])
    allocator.release(pages[1])
    leased = cache.match(SPACE, longer(first))
    assert cache.evict(10) == 2
    assert cache.match(SPACE, longer(second)).size == 0
    again = cache.match(SPACE, longer(first))
    assert again.tolist() == leased.tolist()
    allocator.release(leased)
    allocator.release(again)
    assert cache.clear() == 2
    assert allocator.free == 8


def test_a_page_goes_before_the_pages_it_depends_on() -> None:
    tokens = random_tokens(16, 1)
    cache, allocator, own = filled(tokens)
    allocator.release(own)
    assert cache.evict(1) == 1
    assert cache.match(SPACE, longer(tokens)).tolist() == own[:3].tolist()


def test_publishing_again_keeps_what_is_there() -> None:
    tokens = random_tokens(16, 1)
    cache, allocator, own = filled(tokens)
    twice = allocator.allocate(4)
    assert cache.publish(SPACE, tokens, twice) == 0
    assert cache.match(SPACE, longer(tokens)).tolist() == own.tolist()
