"""Sketches of prompts: what a directory may know about their content.

A sketch consists of a sample of a prompt's winnowed fingerprints, passed through a keyed
pseudo-random function, and of keyed digests of its prefixes every 512 tokens. Two sketches
of one namespace share about one fingerprint per `9 * sampling` tokens that their prompts
share, in any order and at any position. They share a mark only if everything up to it is
the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from semblend.core.errors import SettingsError
from semblend.core.tokens import TokenArray
from semblend.discovery.fingerprints import HashArray, IndexArray, fingerprints, seed_of
from semblend.fleet.keys import FleetKeys
from semblend.fleet.siphash import siphash

SCHEME = "winnow-16-17/siphash-2-4/v1"
"""Identifies everything that must match for two sketches to be comparable."""
MARK_TOKENS = 512
"""Prefix marks are at multiples of this, which is also the size of stored segments."""
MAX_MARKS = 512
"""Longer prefixes are recognized up to 512 * 512 tokens."""
DEFAULT_SAMPLING = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """One prompt as a directory sees it."""

    token_count: int
    hashes: HashArray
    """Sampled fingerprints, shape [kept]."""
    positions: IndexArray
    """Where each one starts, shape [kept], ascending. Never leaves the process."""
    marks: HashArray
    """marks[i] is the digest of the first (i + 1) * 512 tokens."""

    @property
    def weights(self) -> IndexArray:
        """Tokens each fingerprint represents, shape [kept]: those closest to it."""
        if not self.positions.size:
            return np.empty(0, dtype=np.int64)
        middles = (self.positions[1:] + self.positions[:-1]) // 2
        edges = np.concatenate(([0], middles, [self.token_count]))
        return np.diff(edges)


def sketch(tokens: TokenArray, keys: FleetKeys, *, sampling: int = DEFAULT_SAMPLING) -> Sketch:
    """The sketch of a prompt.

    Parameters
    ----------
    tokens
        Token ids, shape [n].
    sampling
        Keep one in this many fingerprints, chosen by content; a power of two. What is kept
        at 16 is also kept at 8, so both can be compared.

    Raises
    ------
    SettingsError
        If `sampling` is not a power of two from 1 to 4096.
    """
    check_sampling(sampling)
    hashes, positions = fingerprints(tokens, seed_of(keys.gram_key))
    # Winnowing keeps small hashes, so only their low bits are uniform.
    kept = (hashes & np.uint64(sampling - 1)) == 0
    return Sketch(
        token_count=int(tokens.size),
        hashes=siphash(hashes[kept], keys.sketch_key),
        positions=positions[kept],
        marks=prefix_marks(tokens, keys),
    )


def prefix_marks(tokens: TokenArray, keys: FleetKeys) -> HashArray:
    """Keyed digests of the prefixes of 512, 1024, ... tokens; shape [n // 512]."""
    data = np.ascontiguousarray(tokens, dtype="<i4")
    context = hashlib.blake2b(key=keys.prefix_key, digest_size=8, person=b"semblend:mark:1")
    count = min(len(data) // MARK_TOKENS, MAX_MARKS)
    marks = np.empty(count, dtype=np.uint64)
    for index in range(count):
        context.update(data[index * MARK_TOKENS : (index + 1) * MARK_TOKENS].data)
        marks[index] = int.from_bytes(context.digest(), "little")
    return marks


def check_sampling(sampling: int) -> int:
    """Return `sampling` if it is valid.

    Raises
    ------
    SettingsError
        If it is not a power of two from 1 to 4096.
    """
    if not 1 <= sampling <= 4096 or sampling & (sampling - 1):
        raise SettingsError(f"sampling: expected a power of two from 1 to 4096, got {sampling}")
    return sampling
