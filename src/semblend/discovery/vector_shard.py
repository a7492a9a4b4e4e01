"""One namespace's vectors: the owner of each row, and the tier that holds it.

Not thread-safe and not bounded. The index has the lock and the limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semblend.discovery.embedders.base import Vectors, normalised
from semblend.discovery.vector_tiers import FlatTier, GraphTier, Keys

MOVES_PER_ADD = 2
"""Rows moved into the graph per added row, so that the flat part shrinks."""
RECENT_SHARE = 8
"""The newest exact_limit / RECENT_SHARE rows stay flat, so recent donors are found exactly."""
GRAPH_CANDIDATES = 512
"""Rows requested from a graph, shared among the queries (but at least k each)."""

_ORDINAL_BITS = 12
MAX_VECTORS_PER_DONOR = 1 << _ORDINAL_BITS


class VectorMatch(NamedTuple):
    """A donor found by meaning."""

    donor_id: str
    cosine: float
    """The best cosine between any of its vectors and any of the query's."""


class Shard:
    """One namespace's rows. A key is an owner's number and the row's index in it."""

    def __init__(self, dimension: int) -> None:
        self.flat = FlatTier(dimension)
        self.graph: GraphTier | None = None
        self.owners: dict[int, str] = {}
        self.numbers: dict[str, tuple[int, int]] = {}
        """Number and row count of each donor."""
        self.most_rows = 1
        """Largest row count of any donor so far. The k best donors are among the best k × this
        rows.
        """

    def __len__(self) -> int:
        return len(self.flat) + (0 if self.graph is None else len(self.graph))

    def keys_of(self, donor_id: str) -> list[int]:
        """Keys of a donor's rows, in order."""
        number, count = self.numbers[donor_id]
        return [(number << _ORDINAL_BITS) | ordinal for ordinal in range(count)]

    def rows_of(self, donor_id: str) -> Vectors:
        """A donor's rows, shape [n, dimension]."""
        return np.stack([self._row(key) for key in self.keys_of(donor_id)])

    def _row(self, key: int) -> Vectors:
        if key in self.flat or self.graph is None:
            return self.flat.get(key)
        row: Vectors = self.graph.get(np.array([key], dtype=np.uint64))[0]
        return row

    def add(self, donor_id: str, number: int, rows: Vectors) -> None:
        """Add a donor that is not held, under a new number."""
        self.owners[number] = donor_id
        self.numbers[donor_id] = (number, len(rows))
        self.most_rows = max(self.most_rows, len(rows))
        for key, row in zip(self.keys_of(donor_id), rows, strict=True):
            self.flat.add(key, row)

    def remove(self, donor_id: str) -> int:
        """Remove a held donor and return its row count."""
        keys = self.keys_of(donor_id)
        for key in keys:
            if key in self.flat or self.graph is None:
                self.flat.remove(key)
            else:
                self.graph.remove(key)
        number, _ = self.numbers.pop(donor_id)
        del self.owners[number]
        return len(keys)

    def balance(self, exact_limit: int, dimension: int, added: int) -> None:
        """Move rows between tiers so that no search scans much more than the limit."""
        if self.graph is None:
            if len(self.flat) <= exact_limit:
                return
            self.graph = GraphTier(dimension)
        elif len(self) <= exact_limit // 2:
            self._dissolve_graph()
            return
        surplus = len(self.flat) - exact_limit // RECENT_SHARE
        moving = self.flat.some_keys(min(surplus, MOVES_PER_ADD * added)) if added else []
        if moving:
            rows = np.stack([self.flat.get(key) for key in moving])
            self.graph.add(np.array(moving, dtype=np.uint64), rows)
            for key in moving:
                self.flat.remove(key)

    def _dissolve_graph(self) -> None:
        graph, self.graph = self.graph, None
        if graph is None:
            return
        missing = [
            key
            for donor_id in self.numbers
            for key in self.keys_of(donor_id)
            if key not in self.flat
        ]
        if missing:
            rows = normalised(graph.get(np.array(missing, dtype=np.uint64)))
            for key, row in zip(missing, rows, strict=True):
                self.flat.add(key, row)

    def search(self, queries: Vectors, k: int) -> list[VectorMatch]:
        """The `k` donors with a row nearest to any of `queries`, best first."""
        count = k * self.most_rows
        found = [self.flat.search(queries, count)]
        if self.graph is not None and len(self.graph):
            each = max(k, GRAPH_CANDIDATES // len(queries))
            found.append(self.graph.search(queries, min(count, each)))
        best: dict[int, float] = {}
        for keys, cosines in found:
            for number, cosine in _by_owner(keys, cosines):
                best[number] = max(cosine, best.get(number, -1.0))
        matches = [VectorMatch(self.owners[n], min(c, 1.0)) for n, c in best.items()]
        matches.sort(key=lambda match: (-match.cosine, match.donor_id))
        return matches[:k]


def _by_owner(keys: Keys, cosines: Vectors) -> list[tuple[int, float]]:
    numbers = (keys >> np.uint64(_ORDINAL_BITS)).tolist()
    return list(zip(numbers, cosines.tolist(), strict=True))
