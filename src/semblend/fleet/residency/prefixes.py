"""Finds exact prefixes in engines' own caches by a prompt's tokens.

Engines name blocks by hashes nobody else can compute, but report which tokens a stored block
has and which block precedes it. From that each block gets a name of ours: a keyed hash of all
tokens up to its end. A prompt's names are computed once, and a rank's resident prefix is the
run of its blocks from the start.

Blocks under SemBlend's private hashes, and blocks chained to them, hold approximate K/V that
no other request can use, so they are no prefix.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from semblend.core.private_hashes import is_private
from semblend.core.tokens import TokenArray
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.residency.decoding import BlockHash, BlocksStored, StoredTokens, keys_text


@dataclass(slots=True)
class _Names:
    """One rank's blocks under our names."""

    bit: int
    """The rank's bit in sets of ranks."""
    of: dict[BlockHash, bytes] = field(default_factory=dict)
    private: set[BlockHash] = field(default_factory=set)
    block_size: int = 0


class PrefixResidency:
    """How much of a prompt's start each rank's cache holds. Thread-safe.

    Covers only ranks whose engine reports everything about its blocks. For models with
    several layer groups, the first group represents all.
    """

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._ranks: dict[RankName, _Names] = {}
        self._holders: dict[bytes, int] = {}
        """Ranks that hold a block, as bits."""
        self._adapters: set[str] = set()
        self._lock = threading.Lock()

    def stored(self, name: RankName, event: BlocksStored) -> None:
        """Blocks of a rank became resident."""
        content = event.content
        if content is None or event.group:
            return
        with self._lock:
            names = self._ranks.get(name)
            if names is None:
                names = self._ranks[name] = _Names(bit=1 << len(self._ranks))
            names.block_size = names.block_size or content.block_size
            if content.block_size != names.block_size:
                return  # Part of a block; the whole block is reported too.
            if content.adapter:
                self._adapters.add(content.adapter)
            before = b"" if content.parent is None else names.of.get(content.parent)
            private = content.parent in names.private
            if before is None and not private:
                return  # It follows a block we have not seen, so its start is unknown.
            for block, named in zip(event.hashes, self._chain(before or b"", content), strict=True):
                private = private or is_private(block)
                if private:
                    names.private.add(block)
                    continue
                names.of[block] = named
                self._holders[named] = self._holders.get(named, 0) | names.bit

    def gone(self, name: RankName, block: BlockHash) -> None:
        """A block of a rank is no longer resident."""
        with self._lock:
            names = self._ranks.get(name)
            if names is None:
                return
            names.private.discard(block)
            named = names.of.pop(block, None)
            if named is None:
                return
            holders = self._holders.pop(named, 0) & ~names.bit
            if holders:
                self._holders[named] = holders

    def resident(
        self, tokens: TokenArray, *, salt: str | None = None, model: str = ""
    ) -> dict[RankName, int]:
        """Tokens at a prompt's start that each followed rank's cache holds, including 0.

        Parameters
        ----------
        salt
            The request's `cache_salt`: blocks stored under another salt do not count.
        model
            The model name in the request, which may be an adapter's.
        """
        with self._lock:
            found = dict.fromkeys(self._ranks, 0)
            adapter = (model,) if model in self._adapters else ()
            for size in {names.block_size for names in self._ranks.values()}:
                ranks = {n.bit: rank for rank, n in self._ranks.items() if n.block_size == size}
                present, held = sum(ranks), 0
                for named in self._names_of(tokens, size, salt, adapter):
                    left = present & self._holders.get(named, 0)
                    if left != present:
                        _note(found, ranks, present & ~left, held)
                    present, held = left, held + size
                    if not present:
                        break
                _note(found, ranks, present, held)
        return found

    def _names_of(
        self, tokens: TokenArray, size: int, salt: str | None, adapter: tuple[str, ...]
    ) -> Iterator[bytes]:
        data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
        named = b""
        for start in range(0, len(tokens) // size * size, size):
            keys = keys_text(*adapter, *([salt] if salt and not start else []))
            named = self._named(named, data[start * 4 : (start + size) * 4], keys)
            yield named

    def _chain(self, before: bytes, content: StoredTokens) -> Iterator[bytes]:
        data = np.asarray(content.token_ids, dtype="<i4").tobytes()
        step = content.block_size * 4
        for index, keys in enumerate(content.keys):
            before = self._named(before, data[index * step : (index + 1) * step], keys)
            yield before

    def _named(self, before: bytes, tokens: bytes, keys: str) -> bytes:
        made = hashlib.blake2b(before, key=self._key, digest_size=12)
        made.update(tokens)
        if keys:
            made.update(b"\0" + keys.encode())
        return made.digest()


def _note(found: dict[RankName, int], ranks: dict[int, RankName], bits: int, held: int) -> None:
    """Record that the ranks of `bits` hold exactly this many tokens."""
    while held and bits:
        bit = bits & -bits
        found[ranks[bit]] = held
        bits ^= bit
