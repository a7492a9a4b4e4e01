"""Fingerprints of token runs: keyed rolling hashes, thinned by winnowing.

Every gram of 16 tokens is hashed, and of every 17 neighbouring grams the smallest hash is kept
(Schleimer, Wilkerson and Aiken, SIGMOD 2003). Whether a gram is kept depends only on its window, so
two prompts that share a run of at least 32 tokens, at any positions, keep at least one of its grams
in common.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import TokenArray

HashArray: TypeAlias = npt.NDArray[np.uint64]
IndexArray: TypeAlias = npt.NDArray[np.int64]

GRAM_TOKENS = 16
WINDOW_GRAMS = 17
GUARANTEED_RUN_TOKENS = GRAM_TOKENS + WINDOW_GRAMS - 1
"""Any shared run at least this long shares a fingerprint."""

FINGERPRINTS_PER_TOKEN = 2 / (WINDOW_GRAMS + 1)
"""Expected density on text without repetition."""

# Odd 64-bit multipliers with well-mixed bits (from the constants of splitmix64 and xxh3).
_MIX_IN = np.uint64(0x9E3779B97F4A7C15)
_MIX_OUT = np.uint64(0xBF58476D1CE4E5B9)
_STEP = tuple(
    np.uint64(value)
    for value in (0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
)
_HALF = np.uint64(32)
_SHIFT = np.uint64(29)


def seed_of(namespace_key: bytes) -> int:
    """The 64-bit hash seed of a namespace. Different namespaces have different fingerprints."""
    return int.from_bytes(namespace_key[:8], "little")


def gram_hashes(tokens: TokenArray, seed: int) -> HashArray:
    """Hashes of all grams of 16 tokens.

    Parameters
    ----------
    tokens
        Token ids, shape [n].
    seed
        Seed of the namespace.

    Returns
    -------
    HashArray
        Shape [max(0, n - 15)]; entry i is the hash of tokens[i : i + 16].
    """
    if tokens.size < GRAM_TOKENS:
        return np.empty(0, dtype=np.uint64)
    hashes = tokens.astype(np.uint64)
    hashes += np.uint64(seed)
    hashes *= _MIX_IN
    hashes ^= hashes >> _HALF
    hashes *= _MIX_OUT
    # Doubling: a gram of 2s tokens is two grams of s tokens, so 16 takes four steps.
    width = 1
    for step in _STEP:
        doubled = hashes[:-width] * step
        doubled += hashes[width:]
        hashes = doubled
        width *= 2
    # Mix the seed in twice. Added only to tokens, neighbouring seeds would just shift them.
    hashes ^= (hashes >> _SHIFT) ^ np.uint64(seed * int(_STEP[0]) & 0xFFFFFFFFFFFFFFFF)
    hashes *= _MIX_OUT
    return hashes


def winnow(hashes: HashArray) -> IndexArray:
    """Indices of the grams that are the smallest of some window of 17 neighbours.

    Equal smallest hashes are all kept. Dropping some would lose matches inside periodic text.
    """
    if hashes.size < WINDOW_GRAMS:
        return np.empty(0, dtype=np.int64)
    smallest = _slide(hashes, np.minimum)
    # A gram is kept if and only if it equals the largest of the minima of the windows that contain
    # it. Windows across the edge do not exist, hence the zeros.
    padded = np.zeros(smallest.size + 2 * (WINDOW_GRAMS - 1), dtype=np.uint64)
    padded[WINDOW_GRAMS - 1 : 1 - WINDOW_GRAMS] = smallest
    return np.flatnonzero(_slide(padded, np.maximum) == hashes)


def fingerprints(tokens: TokenArray, seed: int) -> tuple[HashArray, IndexArray]:
    """Winnowed fingerprints: (hashes, start positions), both of shape [kept]."""
    hashes = gram_hashes(tokens, seed)
    kept = winnow(hashes)
    return hashes[kept], kept


def _slide(values: HashArray, extreme: np.ufunc) -> HashArray:
    """Sliding extreme over windows of 17, by doubling to 16 and adding one."""
    result = values
    width = 1
    while width < WINDOW_GRAMS - 1:
        result = extreme(result[:-width], result[width:])
        width *= 2
    return extreme(result[:-1], values[WINDOW_GRAMS - 1 :])  # type: ignore[no-any-return]
