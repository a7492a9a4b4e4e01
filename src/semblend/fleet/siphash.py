"""SipHash-2-4 of many 64-bit words at once (Aumasson and Bernstein, 2012).

A pseudo-random function: without the 128-bit key, its outputs reveal neither its inputs nor
whether outputs under two keys belong together.
"""

from __future__ import annotations

import numpy as np

from semblend.core.errors import NamespaceError
from semblend.discovery.fingerprints import HashArray

KEY_BYTES = 16

_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
# The second and last block of an eight-byte message is its length alone.
_LENGTH_BLOCK = np.uint64(8 << 56)


def siphash(words: HashArray, key: bytes) -> HashArray:
    """SipHash-2-4 of each word, as eight little-endian bytes; same shape as `words`.

    Raises
    ------
    NamespaceError
        If the key is not 16 bytes long.
    """
    if len(key) != KEY_BYTES:
        raise NamespaceError(f"siphash key: expected {KEY_BYTES} bytes, got {len(key)}")
    halves = (int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    state = [
        np.full(words.shape, constant ^ halves[index % 2], dtype=np.uint64)
        for index, constant in enumerate(_START)
    ]
    for block in (words, _LENGTH_BLOCK):
        state[3] ^= block
        for _ in range(2):
            _round(state)
        state[0] ^= block
    state[2] ^= np.uint64(0xFF)
    for _ in range(4):
        _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(v: list[HashArray]) -> None:
    v[0] += v[1]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] += v[3]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def _rotated(values: HashArray, by: int) -> HashArray:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))
