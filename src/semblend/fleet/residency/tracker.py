"""Tracks donors in an engine's own cache: a donor is complete while all its blocks are resident.

Tracked per rank. A block counts while some medium of some cache group holds it. A donor that
lost a block is complete again when the engine stores that block again: the same hash means
the same tokens after the same tokens. Whether it is still a donor is for the worker to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from semblend.fleet.directory.ranks import RankName
from semblend.fleet.residency.decoding import (
    BlockHash,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
)

_VOUCHED = 1
"""The place of a block that the worker reports although we saw no store event."""


@dataclass(slots=True)
class _Followed:
    blocks: frozenset[BlockHash]
    missing: int


@dataclass(slots=True)
class _Cache:
    blocks: dict[BlockHash, int] = field(default_factory=dict)
    """Resident blocks and their places, as bits."""
    donors: dict[str, _Followed] = field(default_factory=dict)
    users: dict[BlockHash, set[str]] = field(default_factory=dict)


class ResidencyTracker:
    """Knows which blocks are resident and which tracked donors are complete. Thread-safe.

    Parameters
    ----------
    changed
        Called with the rank, the donor, and whether it is now complete, on every change
        after :meth:`track`.
    gone
        Called with the rank and a block that no medium holds any more.
    """

    def __init__(
        self,
        *,
        changed: Callable[[RankName, str, bool], object],
        gone: Callable[[RankName, BlockHash], object] = lambda *_: None,
    ) -> None:
        self._changed = changed
        self._gone = gone
        self._caches: dict[RankName, _Cache] = {}
        self._bits: dict[tuple[str, int], int] = {}
        self._lock = threading.RLock()

    def track(
        self,
        name: RankName,
        donor_id: str,
        hashes: Iterable[BlockHash],
        *,
        vouched: bool = False,
    ) -> bool:
        """Track a donor; return whether all its blocks are resident.

        `vouched`: trust the worker about blocks stored before we listened.
        """
        with self._lock:
            self.forget(name, donor_id)
            cache = self._cache(name)
            wanted = frozenset(hashes)
            if vouched:
                for block in wanted:
                    self._place(name, cache, block, _VOUCHED)
            missing = sum(block not in cache.blocks for block in wanted)
            cache.donors[donor_id] = _Followed(blocks=wanted, missing=missing)
            for block in wanted:
                cache.users.setdefault(block, set()).add(donor_id)
            return not missing

    def forget(self, name: RankName, donor_id: str) -> None:
        with self._lock:
            cache = self._cache(name)
            followed = cache.donors.pop(donor_id, None)
            for block in followed.blocks if followed is not None else ():
                holders = cache.users[block]
                holders.discard(donor_id)
                if not holders:
                    del cache.users[block]

    def forget_donors(self, name: RankName) -> None:
        """Stop tracking all donors of a rank; its blocks stay known."""
        with self._lock:
            cache = self._cache(name)
            cache.donors.clear()
            cache.users.clear()

    def follows(self, name: RankName) -> bool:
        """Whether any donor of a rank is tracked."""
        with self._lock:
            return bool(self._cache(name).donors)

    def is_whole(self, name: RankName, donor_id: str) -> bool:
        """Whether a tracked donor has all its blocks."""
        with self._lock:
            followed = self._cache(name).donors.get(donor_id)
            return followed is not None and not followed.missing

    def resident(self, name: RankName) -> frozenset[BlockHash]:
        """Blocks of a rank that some medium holds."""
        with self._lock:
            return frozenset(self._cache(name).blocks)

    def resident_blocks(self, name: RankName) -> int:
        """How many blocks of a rank some medium holds."""
        with self._lock:
            return len(self._cache(name).blocks)

    def apply(self, name: RankName, event: CacheEvent) -> None:
        """Apply one of a rank's cache events, in order."""
        with self._lock:
            cache = self._cache(name)
            match event:
                case BlocksStored():
                    bit = self._bit(event.medium, event.group)
                    for block in event.hashes:
                        self._place(name, cache, block, bit)
                case BlocksRemoved():
                    bits = self._matching(event) | _VOUCHED
                    for block in event.hashes:
                        self._remove(name, cache, block, bits)
                case CacheCleared():
                    self.reset(name)

    def reset(self, name: RankName) -> None:
        """Nothing is known about the rank's cache: it was cleared, or events were lost for good."""
        with self._lock:
            cache = self._cache(name)
            for block in tuple(cache.blocks):
                self._remove(name, cache, block, -1)

    def _place(self, name: RankName, cache: _Cache, block: BlockHash, bit: int) -> None:
        held = cache.blocks.get(block, 0)
        cache.blocks[block] = held | bit
        if held:
            return
        for donor_id in cache.users.get(block, ()):
            followed = cache.donors[donor_id]
            followed.missing -= 1
            if not followed.missing:
                self._changed(name, donor_id, True)

    def _remove(self, name: RankName, cache: _Cache, block: BlockHash, bits: int) -> None:
        held = cache.blocks.get(block, 0)
        if not held:
            return
        if held & ~bits:
            cache.blocks[block] = held & ~bits
            return
        del cache.blocks[block]
        self._gone(name, block)
        for donor_id in cache.users.get(block, ()):
            followed = cache.donors[donor_id]
            followed.missing += 1
            if followed.missing == 1:
                self._changed(name, donor_id, False)

    def _cache(self, name: RankName) -> _Cache:
        return self._caches.setdefault(name, _Cache())

    def _bit(self, medium: str, group: int) -> int:
        return self._bits.setdefault((medium, group), _VOUCHED << (len(self._bits) + 1))

    def _matching(self, event: BlocksRemoved) -> int:
        """The places the event may refer to; what it omits means any."""
        bits = 0
        for (medium, group), bit in self._bits.items():
            if event.medium in (None, medium) and event.group in (None, group):
                bits |= bit
        return bits
