"""What SGLang's K/V events call the pages of a donor.

Asked of SGLang's own recorder, so that salts, extra keys and formats are its business: it is
shown a tree of one node with the donor's tokens and told that the node is gone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from semblend.integration.provider import DonorRecord
from semblend.integration.sglang.tree_port import radix_key

_SPARSE_TOKENS = 16
"""Of smaller pages only those that end at a multiple of this are named, and the last: a tree
drops leaves first, so while the last page is there all pages before it are."""


class BlockNamer:
    """Names pages as one cache's events do."""

    def __init__(self, *, page_size: int, dynamo_format: bool, lora_names: Any) -> None:
        """As SGLang's KVCacheEventRecorder is made for the cache."""
        self._page_size = page_size
        self._dynamo_format = dynamo_format
        self._lora_names = lora_names

    @classmethod
    def of(cls, cache: Any) -> BlockNamer | None:
        """For a radix cache; None if it publishes no events."""
        params = cache.made_with
        if not params.enable_kv_cache_events:
            return None
        return cls(
            page_size=int(cache.page_size),
            dynamo_format=bool(params.dynamo_kv_event_format),
            lora_names=params.kv_event_lora_names,
        )

    def names(self, donor: DonorRecord) -> list[int]:
        """The donor's pages, 64 bits each with a sign; every one, or of small ones some."""
        from sglang.srt.mem_cache.events import KVCacheEventRecorder

        key = radix_key(donor.tokens, extra_key=donor.extra_key, cache_salt=donor.cache_salt)
        node = SimpleNamespace(key=key, parent=None, hash_value=None, event_hash_value=None)
        aside = KVCacheEventRecorder(
            enabled=True,
            page_size=self._page_size,
            dynamo_format=self._dynamo_format,
            lora_names=self._lora_names,
        )
        aside.record_remove(node)
        pages: list[int] = aside.take()[0].block_hashes
        step = max(1, _SPARSE_TOKENS // self._page_size)
        named = pages[step - 1 :: step]
        return named if len(pages) % step == 0 else [*named, pages[-1]]
