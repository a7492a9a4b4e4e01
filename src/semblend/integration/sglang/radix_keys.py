"""Keys of SGLang's tree, made of a prompt's tokens."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from semblend.core.tokens import TokenArray


def radix_key(tokens: TokenArray, *, extra_key: str | None, cache_salt: str | None = None) -> Any:
    """The key of these tokens, in the namespace of the others."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    # From bytes: number by number, a long prompt would take milliseconds of the scheduler's time.
    ids = array("q", tokens.astype(np.int64).tobytes())
    return RadixKey(ids, extra_key=extra_key, cache_salt=cache_salt)


def lookup(tokens: TokenArray, *, extra_key: str | None, cache_salt: str | None = None) -> Any:
    """A question for the tree alone, on nobody's behalf."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    return MatchPrefixParams(key=radix_key(tokens, extra_key=extra_key, cache_salt=cache_salt))
