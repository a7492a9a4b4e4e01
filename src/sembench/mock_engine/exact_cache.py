"""An exact prefix cache: chained block hashes, least recently used evicted first.

Invariant: a cached block hits only after the very same preceding tokens. Only full blocks
are cached, and at least one token of a prompt is always computed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from sembench.metrics import TokenArray


class ExactPrefixCache:
    """Remembers which prefixes were computed; one per engine, keyed by namespace."""

    def __init__(self, *, block_size: int, capacity_blocks: int) -> None:
        self._block_size = block_size
        self._capacity = capacity_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def match(self, namespace: str, tokens: TokenArray) -> int:
        """How many leading tokens are cached; always fewer than the prompt's length."""
        matched = 0
        for key in self._chain(namespace, tokens[:-1]):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            matched += self._block_size
        return matched

    def insert(self, namespace: str, tokens: TokenArray) -> None:
        """Cache every full block of `tokens`."""
        for key in self._chain(namespace, tokens):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)

    def _chain(self, namespace: str, tokens: TokenArray) -> list[bytes]:
        data = tokens.astype("<u4").tobytes()
        width = 4 * self._block_size
        parent = hashlib.sha256(namespace.encode("utf-8")).digest()
        keys: list[bytes] = []
        for start in range(0, len(data) - width + 1, width):
            parent = hashlib.sha256(parent + data[start : start + width]).digest()
            keys.append(parent)
        return keys
