"""A donor that lives in an engine's own cache lives only while all its blocks do.

Followed per rank. A block counts while some medium of some cache group holds it. A
donor that lost a block is dead for good: the engine may store the same hash again, but
only the worker knows whether that is still the donor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from semblend.fleet.directory.ranks import RankName
from semblend.fleet.residency.decoding import (
    BlockHash,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
)


class ResidencyTracker:
    """Knows which tracked donors are whole; tells when one no longer is. Thread-safe.

    Parameters
    ----------
    lost
        Called, outside the lock, with the rank and the donor that died.
    cleared
        Called with a rank of which nothing is certain any more.
    """

    def __init__(
        self,
        *,
        lost: Callable[[RankName, str], object],
        cleared: Callable[[RankName], object],
    ) -> None:
        self._lost = lost
        self._cleared = cleared
        self._blocks: dict[RankName, dict[BlockHash, set[tuple[str, int]]]] = {}
        self._donors: dict[RankName, dict[str, frozenset[BlockHash]]] = {}
        self._users: dict[RankName, dict[BlockHash, set[str]]] = {}
        self._lock = threading.Lock()

    def track(self, name: RankName, donor_id: str, hashes: Iterable[BlockHash]) -> bool:
        """Follow a donor from now on; False, and not followed, if a block is not there."""
        wanted = frozenset(hashes)
        with self._lock:
            held = self._blocks.get(name, {})
            if not all(block in held for block in wanted):
                return False
            self._donors.setdefault(name, {})[donor_id] = wanted
            users = self._users.setdefault(name, {})
            for block in wanted:
                users.setdefault(block, set()).add(donor_id)
            return True

    def forget(self, name: RankName, donor_id: str) -> None:
        """Stop following a donor."""
        with self._lock:
            self._unlink(name, donor_id)

    def is_whole(self, name: RankName, donor_id: str) -> bool:
        """Whether a followed donor has all its blocks."""
        with self._lock:
            return donor_id in self._donors.get(name, {})

    def resident_blocks(self, name: RankName) -> int:
        """Blocks of a rank that some medium holds."""
        with self._lock:
            return len(self._blocks.get(name, {}))

    def apply(self, name: RankName, events: Iterable[CacheEvent]) -> None:
        """Take a rank's cache events, in order."""
        for event in events:
            if isinstance(event, CacheCleared):
                self.reset(name)
                continue
            with self._lock:
                dead = (
                    self._stored(name, event)
                    if isinstance(event, BlocksStored)
                    else self._removed(name, event)
                )
            for donor_id in dead:
                self._lost(name, donor_id)

    def reset(self, name: RankName) -> None:
        """Nothing is known of the rank's cache: cleared, or events were missed for good."""
        with self._lock:
            for table in (self._blocks, self._donors, self._users):
                table.pop(name, None)
        self._cleared(name)

    def _stored(self, name: RankName, event: BlocksStored) -> list[str]:
        blocks = self._blocks.setdefault(name, {})
        for block in event.hashes:
            blocks.setdefault(block, set()).add((event.medium, event.group))
        return []

    def _removed(self, name: RankName, event: BlocksRemoved) -> list[str]:
        blocks = self._blocks.setdefault(name, {})
        dead: list[str] = []
        for block in event.hashes:
            places = blocks.get(block, set())
            places -= {
                (medium, group)
                for medium, group in places
                if event.medium in (None, medium) and event.group in (None, group)
            }
            if not places:
                blocks.pop(block, None)
                dead += self._users.get(name, {}).get(block, ())
                for donor_id in tuple(self._users.get(name, {}).get(block, ())):
                    self._unlink(name, donor_id)
        return list(dict.fromkeys(dead))

    def _unlink(self, name: RankName, donor_id: str) -> None:
        users = self._users.get(name, {})
        for block in self._donors.get(name, {}).pop(donor_id, frozenset()):
            holders = users.get(block)
            if holders is not None:
                holders.discard(donor_id)
                if not holders:
                    del users[block]
