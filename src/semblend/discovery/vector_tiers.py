"""The two tiers of a namespace's vectors: a flat array to scan and a graph to walk.

Both hold unit rows under 64-bit keys and return exact cosines of the rows they hold. Neither knows
about owners, namespaces or limits, which the index handles.
"""

from __future__ import annotations

import importlib
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.discovery.embedders.base import Vectors

Keys = npt.NDArray[np.uint64]

_FIRST_CAPACITY = 1
"""Most namespaces are small, so an empty one must cost almost nothing."""
GROWTH = 1.5
SLOT_BYTES = 160
"""A row's key and its slot-table entry: a dict entry and two integers."""
GRAPH_FIXED_BYTES = 16 * 2**20
"""Size of an empty usearch graph, whose two arenas start at 8 MiB each."""


class FlatTier:
    """A contiguous float32 array [rows, dimension], scanned in full and therefore exact.

    Deleting swaps the last row into the gap, so rows stay contiguous and both adding and removing
    take constant time (amortised).
    """

    def __init__(self, dimension: int) -> None:
        self._rows = np.empty((_FIRST_CAPACITY, dimension), dtype=np.float32)
        self._keys = np.empty(_FIRST_CAPACITY, dtype=np.uint64)
        self._slots: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: int) -> bool:
        return key in self._slots

    @property
    def nbytes(self) -> int:
        """Bytes allocated, with keys and slot table."""
        return self._rows.nbytes + SLOT_BYTES * len(self._slots)

    def add(self, key: int, row: Vectors) -> None:
        """Add one row, shape [dimension], under a new key."""
        slot = len(self._slots)
        if slot == len(self._keys):
            self._resize(int(slot * GROWTH) + 1)
        self._rows[slot] = row
        self._keys[slot] = key
        self._slots[key] = slot

    def remove(self, key: int) -> None:
        """Remove the row of an existing key."""
        slot, last = self._slots.pop(key), len(self._slots)
        if slot != last:
            self._rows[slot] = self._rows[last]
            self._keys[slot] = self._keys[last]
            self._slots[int(self._keys[slot])] = slot
        if last * 4 < len(self._keys) and len(self._keys) > _FIRST_CAPACITY:
            self._resize(max(_FIRST_CAPACITY, last * 2))

    def get(self, key: int) -> Vectors:
        """The row of an existing key, shape [dimension]."""
        row: Vectors = self._rows[self._slots[key]].copy()
        return row

    def some_keys(self, count: int) -> list[int]:
        """Up to `count` keys (none for a negative count), oldest first."""
        return list(islice(self._slots, max(0, count)))

    def search(self, queries: Vectors, count: int) -> tuple[Keys, Vectors]:
        """The `count` rows nearest to any of `queries` [m, dimension]: keys and cosines."""
        size = len(self._slots)
        if size == 0:
            return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.float32)
        best = (self._rows[:size] @ queries.T).max(axis=1)
        if count < size:
            top = np.argpartition(best, size - count)[size - count :]
            return self._keys[top], best[top]
        return self._keys[:size].copy(), best

    def _resize(self, capacity: int) -> None:
        kept = min(capacity, len(self._keys))
        rows = np.empty((capacity, self._rows.shape[1]), dtype=np.float32)
        keys = np.empty(capacity, dtype=np.uint64)
        rows[:kept], keys[:kept] = self._rows[:kept], self._keys[:kept]
        self._rows, self._keys = rows, keys


class GraphTier:
    """A usearch graph of float16 rows. Its proposals are scored again from the stored rows.

    Half precision keeps a cosine accurate to about 1e-3 and needs no second copy for scoring.
    """

    CONFIDENT_COSINE = 0.6
    """Below this, the graph may have failed to reach a better answer."""
    SCAN_LIMIT = 250_000
    """Largest graph for which such a weak answer is checked with a full scan."""
    MAX_SCANS = 8
    """Weak answers checked per search. A scan takes milliseconds."""

    def __init__(self, dimension: int) -> None:
        usearch = importlib.import_module("usearch.index")
        self._graph: Any = usearch.Index(
            ndim=dimension,
            metric="ip",
            dtype="f16",
            connectivity=16,
            expansion_add=128,
            expansion_search=256,
        )

    def __len__(self) -> int:
        return len(self._graph)

    @property
    def nbytes(self) -> int:
        """Bytes allocated by the graph."""
        return int(self._graph.memory_usage)

    def add(self, keys: Keys, rows: Vectors) -> None:
        """Add rows [n, dimension] under new keys [n]."""
        self._graph.add(keys, rows, threads=1)

    def remove(self, key: int) -> None:
        """Remove the row of an existing key. A later row takes its place."""
        self._graph.remove(key)

    def get(self, keys: Keys) -> Vectors:
        """The rows of existing keys, shape [n, dimension]."""
        if len(keys) == 0:
            return np.empty((0, self._graph.ndim), dtype=np.float32)
        rows: Vectors = np.stack(self._graph.get(keys)).astype(np.float32)
        return rows

    def search(self, queries: Vectors, count: int) -> tuple[Keys, Vectors]:
        """Rows near any of `queries` [m, dimension]: keys and their best cosines."""
        keys = self._propose(queries, count, exact=False)
        cosines = self.get(keys) @ queries.T  # [proposed, m]
        weak = np.flatnonzero(cosines.max(axis=0, initial=-1.0) < self.CONFIDENT_COSINE)
        if len(weak) and len(self) <= self.SCAN_LIMIT:
            scanned = queries[weak[: self.MAX_SCANS]]
            keys = np.union1d(keys, self._propose(scanned, count, exact=True))
            cosines = self.get(keys) @ queries.T
        return keys, cosines.max(axis=1)

    def _propose(self, queries: Vectors, count: int, *, exact: bool) -> Keys:
        """Keys of the rows nearest to each query, without duplicates."""
        found = self._graph.search(queries, min(count, len(self)), threads=1, exact=exact)
        keys = np.asarray(found.keys, dtype=np.uint64).reshape(len(queries), -1)
        # A query may get fewer answers than requested; the entries after them are not keys.
        answered = np.arange(keys.shape[1]) < np.reshape(_counts(found), (-1, 1))
        return np.unique(keys[answered])


def _counts(found: Any) -> Any:
    """Answers per query: one number for a single query, an array for several."""
    return found.counts if hasattr(found, "counts") else len(found)


def graph_available() -> bool:
    try:
        importlib.import_module("usearch.index")
    except ImportError:
        return False
    return True
