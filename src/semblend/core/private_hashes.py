"""Block hashes of K/V that only one request may use.

An engine publishes every block it caches, with its tokens, to whoever follows its K/V events.
Blocks of approximate K/V are cached under hashes that no other request can compute; whoever
follows must be able to tell them, too, or it would take them for exact prefixes.
"""

from __future__ import annotations

import secrets

HASH_BYTES = 32
_MARK = b"SmBl"
"""The last bytes, because engines publish a digest's last 64 bits."""
_MARK_NUMBER = int.from_bytes(_MARK, "big")


def private_hashes(count: int) -> list[bytes]:
    """Hashes nobody can compute, each 224 random bits and the mark; drawn at once."""
    size = HASH_BYTES - len(_MARK)
    drawn = secrets.token_bytes(size * count)
    return [drawn[at : at + size] + _MARK for at in range(0, size * count, size)]


def is_private(block_hash: int | bytes) -> bool:
    """Whether a block's published hash is one of these.

    One in four billion of all other hashes looks like one; such a block is not counted.
    """
    if isinstance(block_hash, bytes):
        return block_hash.endswith(_MARK)
    return block_hash & 0xFFFF_FFFF == _MARK_NUMBER
