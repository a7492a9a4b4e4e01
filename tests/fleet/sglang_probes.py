"""What a test asks inside SGLang's scheduler: the truth that a directory is compared with."""

from __future__ import annotations

from array import array
from typing import Any


def donors_whole(host: Any) -> list[str]:
    """Donors the worker says it holds, of which the tree really holds every page."""
    host.side.wait_for_donors()
    records = list(host.side.provider._donors.values())
    return [record.donor_id for record in records if _held(host, record) >= len(record.tokens)]


def pages(host: Any) -> int:
    """Pages in the tree."""
    return int(host.cache.evictable_size()) // int(host.cache.page_size)


def _held(host: Any, record: Any) -> int:
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    key = RadixKey(
        array("q", record.tokens.tolist()),
        extra_key=record.extra_key,
        cache_salt=record.cache_salt,
    )
    return int(host.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)
