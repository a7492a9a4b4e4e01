"""Block hashes for K/V that only one request may use.

An engine publishes every cached block with its tokens to subscribers of its K/V events. Blocks of
approximate K/V are cached under hashes that no other request can compute. Subscribers must
recognise them too, or they would take them for exact prefixes.
"""

from __future__ import annotations

import secrets

HASH_BYTES = 32
_MARK = b"SmBl"
"""The last bytes, because engines publish the last 64 bits of a digest."""
_MARK_NUMBER = int.from_bytes(_MARK, "big")


def private_hashes(count: int) -> list[bytes]:
    """Draw unguessable hashes at once: 224 random bits and the mark each."""
    size = HASH_BYTES - len(_MARK)
    drawn = secrets.token_bytes(size * count)
    return [drawn[at : at + size] + _MARK for at in range(0, size * count, size)]


def is_private(block_hash: int | bytes) -> bool:
    """Whether a block's published hash is private.

    One in four billion other hashes looks private too. Such a block is not counted.
    """
    if isinstance(block_hash, bytes):
        return block_hash.endswith(_MARK)
    return block_hash & 0xFFFF_FFFF == _MARK_NUMBER
