"""The built-in tokenizer: hashed words and punctuation. No files, no network, never changes."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import numpy as np

from sembench.blocks import TokenArray

STABLE_REGEX = "stable-regex-sha256"
_TOKEN = re.compile(r"\w+|[^\w\s]")
_MASK = 0x7FFFFFFF


@lru_cache(maxsize=1 << 16)
def _token_id(word: str) -> int:
    """First 4 bytes of sha256 of the lower-cased token, little-endian, without the sign bit."""
    return int.from_bytes(hashlib.sha256(word.encode("utf-8")).digest()[:4], "little") & _MASK


class StableRegexTokenizer:
    """``\\w+|[^\\w\\s]``, lower-cased, each token hashed to 31 bits."""

    @property
    def name(self) -> str:
        return STABLE_REGEX

    def encode(self, text: str) -> TokenArray:
        """Token ids of `text`, shape [tokens]."""
        words = _TOKEN.findall(text.lower())
        return np.fromiter(map(_token_id, words), dtype=np.uint32, count=len(words))
