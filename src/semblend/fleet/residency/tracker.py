"""A donor that lives in an engine's own cache lives only while all its blocks do.

Followed per rank. A block counts while some medium of some cache group holds it. A donor
that lost a block is whole again when the engine stores that block again: the same hash is the
same tokens behind the same tokens. Whether the donor still is one is the worker's to say.
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
"""The place of a block that the worker says it has, although nobody heard it being stored."""


@dataclass(slots=True)
class _Followed:
    blocks: frozenset[BlockHash]
    missing: int


@dataclass(slots=True)
class _Cache:
    blocks: dict[BlockHash, int] = field(default_factory=dict)
    """Resident blocks, and where they are, as bits."""
    donors: dict[str, _Followed] = field(default_factory=dict)
    users: dict[BlockHash, set[str]] = field(default_factory=dict)


class ResidencyTracker:
    """Knows which blocks are resident, and which followed donors are whole. Thread-safe.

    Parameters
    ----------
    changed
        Called with the rank, the donor, and whether it is whole now, whenever that changes
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
        """Follow a donor from now on; returns whether all its blocks are there.

        `vouched`: what was stored before we listened counts as there, on the worker's word.
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
        """Stop following a donor."""
        with self._lock:
            cache = self._cache(name)
            followed = cache.donors.pop(donor_id, None)
            for block in followed.blocks if followed is not None else ():
                holders = cache.users[block]
                holders.discard(donor_id)
                if not holders:
                    del cache.users[block]

    def forget_donors(self, name: RankName) -> None:
        """Stop following all donors of a rank; its blocks stay known."""
        with self._lock:
            cache = self._cache(name)
            cache.donors.clear()
            cache.users.clear()

    def follows(self, name: RankName) -> bool:
        """Whether any donor of a rank is followed."""
        with self._lock:
            return bool(self._cache(name).donors)

    def is_whole(self, name: RankName, donor_id: str) -> bool:
        """Whether a followed donor has all its blocks."""
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
        """Take one of a rank's cache events; they come in order."""
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
        """Nothing is known of the rank's cache: cleared, or events were missed for good."""
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
        """Places the event may mean; what it does not say is any."""
        bits = 0
        for (medium, group), bit in self._bits.items():
            if event.medium in (None, medium) and event.group in (None, group):
                bits |= bit
        return bits
