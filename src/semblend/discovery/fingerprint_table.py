"""An open-addressed table from fingerprints to places in the token arena.

It is array-backed and of fixed size. Nothing is ever rehashed, so registration never pauses. A
fingerprint is stored in the emptier of two buckets of eight slots, and a lookup reads both.
Deleting empties the slot, so there are no tombstones.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from semblend.discovery.fingerprints import HashArray, IndexArray

SLOTS = 8
SLOT_BYTES = 8
MAX_PLACES = 8
"""Places kept per fingerprint. Long shared content is stored once (see the donor store), so only
short boilerplate ever has more. Half of its two buckets stays free for others.
"""

TOUCH_BYTES = 1 << 20
"""Bytes of each array that :meth:`FingerprintTable.touch` touches at once."""

_PAGE = mmap.PAGESIZE
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class FingerprintTable:
    """Every stored place can be found under its fingerprint.

    Parameters
    ----------
    capacity
        Number of fingerprints to hold. The operating system allocates memory lazily,
        as buckets are first written.
    """

    LOAD = 0.65

    def __init__(self, capacity: int) -> None:
        self._buckets = np.uint64(max(2, int(capacity / self.LOAD / SLOTS) + 1))
        shape = (int(self._buckets), SLOTS)
        self._tags: npt.NDArray[np.uint32] = np.zeros(shape, dtype=np.uint32)
        # Places are stored plus one, because zero marks an empty slot.
        self._places: npt.NDArray[np.uint32] = np.zeros(shape, dtype=np.uint32)
        self._touched = 0
        self.stored = 0
        self.dropped = 0

    @property
    def nbytes(self) -> int:
        """Size of the table in bytes once every page has been touched."""
        return self._tags.nbytes + self._places.nbytes

    def touch(self) -> bool:
        """Touch the next slice of the table before it is needed. False at its end.

        Fingerprints are spread out, so the first long donor would touch nearly all of the table and
        pay for it. Stored data does not change.
        """
        start, self._touched = self._touched, min(self._tags.nbytes, self._touched + TOUCH_BYTES)
        step = _PAGE // self._tags.itemsize
        for array in (self._tags.reshape(-1), self._places.reshape(-1)):
            slots = array[start // array.itemsize : self._touched // array.itemsize : step]
            slots[...] = slots.copy()
        return start < self._touched

    def find(self, hashes: HashArray) -> tuple[IndexArray, IndexArray]:
        """All places of `hashes`: (index into hashes, place), both of shape [hits], by index."""
        tags, first, second = self._address(hashes)
        buckets = np.stack((first, second), axis=1)
        hit = self._tags.take(buckets, axis=0) == tags[:, None, None]
        # Empty slots also have tag zero, and both choices may be the same bucket, which counts
        # once.
        flat = np.flatnonzero(hit)
        choice = flat // SLOTS
        places = self._places.reshape(-1).take(
            buckets.reshape(-1).take(choice) * SLOTS + flat % SLOTS
        )
        index = choice >> 1
        filled = (places > 0) & ((choice & 1 == 0) | (first != second).take(index))
        return index[filled], places[filled].astype(np.int64) - 1

    def add(self, hashes: HashArray, places: IndexArray) -> None:
        """Store a place for each hash. A hash that already has enough places is left unchanged."""
        tags, first, second = self._address(hashes)
        values = (places + 1).astype(np.uint32)
        waiting = np.arange(hashes.size)
        while waiting.size:
            tag, one, two = tags[waiting], first[waiting], second[waiting]
            taken_one, taken_two = self._places[one], self._places[two]
            in_one = ((self._tags[one] == tag[:, None]) & (taken_one > 0)).sum(1)
            in_two = ((self._tags[two] == tag[:, None]) & (taken_two > 0)).sum(1)
            copies = in_one + np.where(one == two, 0, in_two)
            fill_one, fill_two = (taken_one > 0).sum(1), (taken_two > 0).sum(1)
            use_one = fill_one <= fill_two
            bucket = np.where(use_one, one, two)
            room = (np.minimum(fill_one, fill_two) < SLOTS) & (copies < MAX_PLACES)
            self.dropped += int(room.size - room.sum())
            waiting, bucket = waiting[room], bucket[room]
            if not waiting.size:
                return
            # Insert one entry per bucket and round, so that two of a batch never take the same
            # slot.
            bucket, chosen = np.unique(bucket, return_index=True)
            entry = waiting[chosen]
            slot = np.argmin(self._places[bucket] > 0, axis=1)
            self._tags[bucket, slot] = tags[entry]
            self._places[bucket, slot] = values[entry]
            self.stored += entry.size
            waiting = np.delete(waiting, chosen)

    def remove(self, hashes: HashArray, places: IndexArray) -> None:
        """Remove exactly these (hash, place) pairs. Pairs not stored are ignored."""
        tags, first, second = self._address(hashes)
        values = (places + 1).astype(np.uint32)
        for buckets in (first, second):
            hit = (self._places[buckets] == values[:, None]) & (
                self._tags[buckets] == tags[:, None]
            )
            row, slot = np.nonzero(hit)
            self._places[buckets[row], slot] = 0
            self.stored -= row.size

    def _address(self, hashes: HashArray) -> tuple[npt.NDArray[np.uint32], IndexArray, IndexArray]:
        """(tags, first bucket, second bucket), reduced to range by multiply-shift."""
        first = ((hashes >> _HALF) * self._buckets) >> _HALF
        mixed = (hashes * _SECOND) >> _HALF
        second = (mixed * self._buckets) >> _HALF
        return (hashes & _LOW).astype(np.uint32), first.astype(np.int64), second.astype(np.int64)
