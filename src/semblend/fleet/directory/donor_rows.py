"""One row of numbers per donor, and the rule for when a row is valid.

A donor is live while its epoch equals its rank's. Dropping all donors of a rank is
therefore one addition, however many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import CapacityError
from semblend.discovery.fingerprints import HashArray, IndexArray
from semblend.fleet.events.event_values import Location

LOCAL, SHARED, HIDDEN = 1, 2, 4
"""Where a donor's K/V is, as bits: with its rank, in a shared store; and whether it is
hidden although it is registered."""
DEAD = 0
"""An epoch that no rank has."""
ROW_BYTES = 8 + 4 + 4 + 4 + 4 + 1


def places_of(location: Location) -> int:
    local = LOCAL if location.kind == "worker" else 0
    return local | (SHARED if location.locator else 0)


class DonorRows:
    """Owns the rows: each is free, live, or dead and waiting for a sweep."""

    def __init__(self, capacity: int, ranks: int) -> None:
        self.capacity = capacity
        self.key: HashArray = np.zeros(capacity, dtype=np.uint64)
        self.rank: npt.NDArray[np.uint32] = np.zeros(capacity, dtype=np.uint32)
        self.epoch: npt.NDArray[np.uint32] = np.zeros(capacity, dtype=np.uint32)
        self.namespace: npt.NDArray[np.uint32] = np.zeros(capacity, dtype=np.uint32)
        self.tokens: npt.NDArray[np.uint32] = np.zeros(capacity, dtype=np.uint32)
        self.places: npt.NDArray[np.uint8] = np.zeros(capacity, dtype=np.uint8)
        self.rank_epoch: npt.NDArray[np.uint32] = np.ones(ranks, dtype=np.uint32)
        self.rank_live: IndexArray = np.zeros(ranks, dtype=np.int64)
        """Live donors by rank."""
        self._used = 0
        self._free: list[IndexArray] = []

    @property
    def live_count(self) -> int:
        return int(self.rank_live.sum())

    @property
    def dead_count(self) -> int:
        """Rows that are neither live nor free."""
        return self._used - self.live_count - self.free_count

    @property
    def free_count(self) -> int:
        """Free rows below the high-water mark."""
        return sum(len(part) for part in self._free)

    @property
    def used(self) -> int:
        """Rows ever used: the high-water mark."""
        return self._used

    @property
    def room(self) -> int:
        """Rows available now."""
        return self.free_count + self.capacity - self._used

    def is_live(self, rows: IndexArray) -> npt.NDArray[np.bool_]:
        epoch = self.epoch[rows]
        live: npt.NDArray[np.bool_] = (epoch != DEAD) & (epoch == self.rank_epoch[self.rank[rows]])
        return live

    def owner(self, rows: IndexArray) -> IndexArray:
        """Ranks of rows; -1 for dead ones."""
        return np.where(self.is_live(rows), self.rank[rows], np.int64(-1)).astype(np.int64)

    def live_rows(self) -> IndexArray:
        return np.flatnonzero(self.is_live(np.arange(self._used)))

    def take(self, count: int) -> IndexArray:
        """Reserve rows to write to.

        Raises
        ------
        CapacityError
            If there are not enough; then none is taken.
        """
        if count > self.room:
            raise CapacityError(f"directory: {count} donor rows needed, {self.room} free")
        parts: list[IndexArray] = []
        while count and self._free:
            part = self._free.pop()
            parts.append(part[:count])
            if len(part) > count:
                self._free.append(part[count:])
            count -= len(parts[-1])
        if count:
            parts.append(np.arange(self._used, self._used + count))
            self._used += count
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def write(
        self,
        rows: IndexArray,
        *,
        keys: HashArray,
        ranks: IndexArray,
        namespaces: IndexArray,
        tokens: IndexArray,
        places: IndexArray,
    ) -> None:
        """Fill rows, which makes them live."""
        self.key[rows] = keys
        self.rank[rows] = ranks
        self.namespace[rows] = namespaces
        self.tokens[rows] = tokens
        self.places[rows] = places
        self.epoch[rows] = self.rank_epoch[ranks]
        np.add.at(self.rank_live, ranks, 1)

    def kill(self, rows: IndexArray) -> int:
        """Mark rows dead, skipping dead ones; return how many died."""
        rows = np.unique(rows[self.is_live(rows)])
        np.subtract.at(self.rank_live, self.rank[rows], 1)
        self.epoch[rows] = DEAD
        return int(rows.size)

    def drop_rank(self, rank: int) -> int:
        """Mark all donors of a rank dead; return how many died."""
        died = int(self.rank_live[rank])
        self.rank_epoch[rank] += 1
        self.rank_live[rank] = 0
        return died

    def dead_rows(self) -> IndexArray:
        """Rows that are dead and not yet free."""
        dead = ~self.is_live(np.arange(self._used))
        for part in self._free:
            dead[part] = False
        return np.flatnonzero(dead)

    def give_back(self, rows: IndexArray) -> None:
        """Free rows that nothing refers to any more."""
        if rows.size:
            self.epoch[rows] = DEAD
            self._free.append(rows)

    def grow_ranks(self, count: int) -> None:
        """Make room for at least `count` ranks."""
        missing = count - self.rank_epoch.size
        if missing > 0:
            more = max(missing, self.rank_epoch.size)
            self.rank_epoch = np.append(self.rank_epoch, np.ones(more, dtype=np.uint32))
            self.rank_live = np.append(self.rank_live, np.zeros(more, dtype=np.int64))

    # -- snapshots ---------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything a snapshot keeps, by name; dead rows stay dead."""
        used = self._used
        return {
            "donor_key": self.key[:used],
            "donor_rank": self.rank[:used],
            "donor_epoch": self.epoch[:used],
            "donor_namespace": self.namespace[:used],
            "donor_tokens": self.tokens[:used],
            "donor_places": self.places[:used],
            "rank_epoch": self.rank_epoch,
            "rank_live": self.rank_live,
        }

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` returned. Free rows come back as dead ones."""
        used = int(arrays["donor_key"].size)
        for name in ("key", "rank", "epoch", "namespace", "tokens", "places"):
            getattr(self, name)[:used] = arrays[f"donor_{name}"]
        self.rank_epoch = arrays["rank_epoch"].copy()
        self.rank_live = arrays["rank_live"].copy()
        self._used, self._free = used, []
