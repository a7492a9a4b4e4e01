"""Maps fingerprints to the donors that hold them: one fixed array, cleaned as it is used.

A fingerprint lives in one of two buckets of eight slots. A slot holds 32 bits of the
fingerprint and a donor number. The slots of a dead donor count as empty at once; a sweep
clears them step by step before the number is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.discovery.fingerprints import HashArray, IndexArray

Words: TypeAlias = npt.NDArray[np.uint32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

SLOTS = 8
SLOT_BYTES = 8
LOAD = 0.75
MAX_OWNERS = 8
"""Owners kept per fingerprint; content that more of them hold is easy to find anyway."""

_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_CLAIM_MASK = (1 << 20) - 1


class PostingTable:
    """Keeps one live slot per fingerprint and owner, the newest donor's.

    Parameters
    ----------
    capacity
        Postings it should hold; the operating system allocates memory as it is written.
    owner_of
        Maps donor numbers to owner numbers, -1 for a dead donor.
    """

    def __init__(self, capacity: int, owner_of: Callable[[IndexArray], IndexArray]) -> None:
        self._owner_of = owner_of
        self._buckets = np.uint64(max(2, int(capacity / LOAD / SLOTS) + 1))
        shape = (int(self._buckets), SLOTS)
        self.tags: Words = np.zeros(shape, dtype=np.uint32)
        self.donors: Words = np.zeros(shape, dtype=np.uint32)
        """Donor numbers plus one; zero is an empty slot."""
        self.dropped = 0
        """Postings dropped because both buckets were full of live donors."""
        self._swept = 0
        self._claims: npt.NDArray[np.int32] = np.zeros(_CLAIM_MASK + 1, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        """Size in bytes once every page has been touched."""
        return self.tags.nbytes + self.donors.nbytes

    def find(self, hashes: HashArray) -> tuple[IndexArray, IndexArray]:
        """Donors under `hashes`: (index into hashes, donor number), including dead ones."""
        tags, first, second = self._address(hashes)
        buckets = np.stack((first, second), axis=1)
        hit = self.tags[buckets] == tags[:, None, None]
        hit[:, 1] &= (first != second)[:, None]  # both choices may be the same bucket
        row, choice, slot = np.nonzero(hit)
        donors = self.donors[buckets[row, choice], slot].astype(np.int64) - 1
        filled = donors >= 0
        return row[filled], donors[filled]

    def add(self, hashes: HashArray, donors: IndexArray) -> None:
        """Store a donor for each hash, replacing an older donor of the same owner."""
        kept = _newest(hashes, self._owner_of(donors))
        hashes, donors = hashes[kept], donors[kept]
        tags, first, second = self._address(hashes)
        waiting = np.arange(hashes.size)
        while waiting.size:
            won = self._alone(first[waiting], second[waiting])
            now = waiting[won]
            self._place(tags[now], first[now], second[now], donors[now])
            waiting = waiting[~won]

    def _alone(self, first: IndexArray, second: IndexArray) -> BoolArray:
        """Select rows that share no bucket with each other; at least one.

        Every row writes its number where its buckets point. A row that finds its own number in
        both places has them to itself. There are fewer places than buckets, so some rows wait
        needlessly, but nothing needs sorting.
        """
        one, two = first & _CLAIM_MASK, second & _CLAIM_MASK
        rows = np.arange(first.size, dtype=np.int32)
        self._claims[one] = rows
        self._claims[two] = rows
        won: BoolArray = (self._claims[one] == rows) & (self._claims[two] == rows)
        if not won.any():
            won[0] = True
        return won

    def _place(
        self, tags: Words, first: IndexArray, second: IndexArray, donors: IndexArray
    ) -> None:
        """Insert one posting per row; no two rows share a bucket."""
        buckets = np.stack((first, second), axis=1)
        held = self.donors[buckets].astype(np.int64) - 1  # [n, 2, 8]
        owners = np.full(held.shape, -1, dtype=np.int64)
        filled = held >= 0
        owners[filled] = self._owner_of(held[filled])
        live = owners >= 0
        equal = live & (self.tags[buckets] == tags[:, None, None])
        mine = equal & (owners == self._owner_of(donors)[:, None, None])
        same_bucket = first == second
        copies = equal.sum((1, 2)) // np.where(same_bucket, 2, 1)
        # Preference: replace this owner's older posting, otherwise use the emptier bucket.
        fill = live.sum(2)
        emptier = np.argmin(fill, axis=1)
        rows = np.arange(donors.size)
        replace = mine.any((1, 2))
        choice = np.where(replace, mine.any(2).argmax(1), emptier)
        slot = np.where(
            replace, mine[rows, choice].argmax(1), np.argmin(live[rows, choice], axis=1)
        )
        room = replace | ((fill[rows, emptier] < SLOTS) & (copies < MAX_OWNERS))
        self.dropped += int(room.size - room.sum())
        rows, bucket, slot = rows[room], buckets[rows, choice][room], slot[room]
        self.tags[bucket, slot] = tags[rows]
        self.donors[bucket, slot] = (donors[rows] + 1).astype(np.uint32)

    def sweep(self, buckets: int) -> bool:
        """Clear dead donors' slots in the next `buckets` buckets; True when a pass is complete."""
        end = min(self._swept + buckets, int(self._buckets))
        strip = self.donors[self._swept : end]
        row, slot = np.nonzero(strip)
        dead = self._owner_of(strip[row, slot].astype(np.int64) - 1) < 0
        strip[row[dead], slot[dead]] = 0
        self._swept = 0 if end == int(self._buckets) else end
        return self._swept == 0

    def _address(self, hashes: HashArray) -> tuple[Words, IndexArray, IndexArray]:
        first = ((hashes >> _HALF) * self._buckets) >> _HALF
        second = (((hashes * _SECOND) >> _HALF) * self._buckets) >> _HALF
        return (hashes & _LOW).astype(np.uint32), first.astype(np.int64), second.astype(np.int64)

    # -- snapshots ---------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything a snapshot keeps, by name."""
        return {"posting_tags": self.tags, "posting_donors": self.donors}


def _newest(hashes: HashArray, owners: IndexArray) -> IndexArray:
    """The last posting of each (hash, owner) in a batch, and a few owners per hash."""
    order = np.lexsort((owners, hashes))  # stable: later postings come later
    hashes, owners = hashes[order], owners[order]
    last = np.ones(order.size, dtype=bool)
    last[:-1] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
    order, hashes = order[last], hashes[last]
    starts = np.ones(order.size, dtype=bool)
    starts[1:] = hashes[1:] != hashes[:-1]
    first = np.maximum.accumulate(np.where(starts, np.arange(order.size), 0))
    return np.sort(order[np.arange(order.size) - first < MAX_OWNERS])
