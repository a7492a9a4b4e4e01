"""Cosine search over donors' vectors: exact for few, approximate for many.

Each namespace has its own structures, so a vector of another namespace is never even scored. New
rows go into a flat array that is scanned in full. Once a namespace has more than `exact_limit`
rows, each addition moves a few of the oldest into a usearch graph, so no single call pays for
building it. A search queries both and merges. Below half the limit everything moves back, and
answers are exact again.

The index has a byte limit. When it is full, the oldest vectors are dropped. Their donors stay and
are still found by tokens, but no longer by meaning.

All methods are thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from semblend.core.errors import CapacityError, NamespaceError, SettingsError, VectorError
from semblend.core.installing import install_command
from semblend.discovery.embedders.base import Vectors, normalised
from semblend.discovery.vector_shard import (
    MAX_VECTORS_PER_DONOR,
    RECENT_SHARE,
    Shard,
    VectorMatch,
)
from semblend.discovery.vector_tiers import (
    GRAPH_FIXED_BYTES,
    GROWTH,
    SLOT_BYTES,
    graph_available,
)

logger = logging.getLogger("semblend.vector_index")

__all__ = ["EXACT_LIMIT", "VectorIndex", "VectorIndexStats", "VectorMatch"]

EXACT_LIMIT = 20_000
"""Rows of a namespace scanned in full: about 2 ms for 384 dimensions on one thread."""
DONOR_BYTES = 512
SHARD_BYTES = 2048
"""Size of a donor's and a namespace's Python objects (a test checks it with tracemalloc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIndexStats:
    """What the index holds now, and what it has dropped so far."""

    donors: int
    vectors: int
    exact_vectors: int
    """Vectors in flat arrays."""
    graph_vectors: int
    """Vectors in usearch graphs."""
    namespaces: int
    nbytes: int
    dropped_donors: int
    """Donors dropped because the index was full."""


class VectorIndex:
    """Vectors by donor_id and namespace, searched by cosine, bounded in bytes.

    >>> index = VectorIndex(2)
    >>> index.add("a", np.array([[1.0, 0.0]]), namespace=b"n")
    >>> index.search(np.array([[1.0, 0.0]]), 1, namespace=b"n")
    [VectorMatch(donor_id='a', cosine=1.0)]
    >>> index.search(np.array([[1.0, 0.0]]), 1, namespace=b"other")
    []
    """

    def __init__(
        self, dimension: int, *, max_bytes: int = 256 * 2**20, exact_limit: int = EXACT_LIMIT
    ) -> None:
        if dimension < 1:
            raise SettingsError(f"dimension: expected at least 1, got {dimension}")
        if exact_limit < RECENT_SHARE:
            raise SettingsError(
                f"exact_limit: expected at least {RECENT_SHARE} rows, got {exact_limit}"
            )
        self.dimension = dimension
        self.max_bytes = max_bytes
        # The more expensive of a row's two places, with slack for growth.
        self._row_bytes = int(GROWTH * 4 * dimension) + SLOT_BYTES
        self._exact_limit = exact_limit
        self._can_approximate = True
        self._shards: dict[bytes, Shard] = {}
        self._order: OrderedDict[tuple[bytes, str], None] = OrderedDict()
        self._next_number = 0
        self._rows = 0
        self._graphs = 0
        self._dropped_donors = 0
        self._lock = threading.RLock()

    def add(self, donor_id: str, vectors: Vectors, *, namespace: bytes) -> None:
        """Hold `vectors` ([n, dimension] or [dimension]) under `donor_id`, replacing earlier ones.

        Raises
        ------
        VectorError
            If they are not finite rows of this index's dimension, or too many.
        NamespaceError
            If the namespace key is empty.
        CapacityError
            If they alone exceed the index's limit.
        """
        rows = self._checked(vectors)
        _check_namespace(namespace)
        if not 1 <= len(rows) <= MAX_VECTORS_PER_DONOR:
            raise VectorError(
                f"{donor_id!r}: expected 1 to {MAX_VECTORS_PER_DONOR} vectors, got {len(rows)}"
            )
        alone = len(rows) * self._row_bytes + DONOR_BYTES + SHARD_BYTES
        if alone > self.max_bytes:
            raise CapacityError(
                f"{donor_id!r}: {len(rows)} vectors of {self.dimension} need {alone} bytes, "
                f"but the limit is {self.max_bytes}"
            )
        with self._lock:
            self.remove(donor_id, namespace=namespace)
            self._make_room(len(rows), namespace)
            shard = self._shards.setdefault(namespace, Shard(self.dimension))
            shard.add(donor_id, self._next_number, rows)
            self._next_number += 1
            self._rows += len(rows)
            self._order[(namespace, donor_id)] = None
            self._balance(shard, added=len(rows))

    def remove(self, donor_id: str, *, namespace: bytes) -> bool:
        """Drop `donor_id`. False if it was not held."""
        with self._lock:
            if (namespace, donor_id) not in self._order:
                return False
            del self._order[(namespace, donor_id)]
            shard = self._shards[namespace]
            self._rows -= shard.remove(donor_id)
            if len(shard) == 0:
                self._graphs -= shard.graph is not None
                del self._shards[namespace]
            else:
                self._balance(shard, added=0)
            return True

    def search(self, vectors: Vectors, k: int, *, namespace: bytes) -> list[VectorMatch]:
        """The `k` donors of a namespace with the best cosine to any of `vectors`, best first.

        Raises
        ------
        VectorError
            If `vectors` are not finite rows of this index's dimension.
        """
        queries = self._checked(vectors)
        if k < 1 or len(queries) == 0:
            return []
        with self._lock:
            shard = self._shards.get(namespace)
            return [] if shard is None else shard.search(queries, k)

    def get(self, donor_id: str, *, namespace: bytes) -> Vectors | None:
        """A donor's vectors [n, dimension], in half precision; None if it is not held."""
        with self._lock:
            if (namespace, donor_id) not in self._order:
                return None
            return self._shards[namespace].rows_of(donor_id)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item: tuple[bytes, str]) -> bool:
        return item in self._order

    @property
    def stats(self) -> VectorIndexStats:
        with self._lock:
            graphs = [shard.graph for shard in self._shards.values() if shard.graph is not None]
            in_graphs = sum(len(graph) for graph in graphs)
            flat_bytes = sum(shard.flat.nbytes for shard in self._shards.values())
            objects = len(self._order) * DONOR_BYTES + len(self._shards) * SHARD_BYTES
            return VectorIndexStats(
                donors=len(self._order),
                vectors=self._rows,
                exact_vectors=self._rows - in_graphs,
                graph_vectors=in_graphs,
                namespaces=len(self._shards),
                nbytes=objects + flat_bytes + sum(graph.nbytes for graph in graphs),
                dropped_donors=self._dropped_donors,
            )

    def _make_room(self, rows: int, namespace: bytes) -> None:
        while self._order and self._bytes_with(rows, namespace) > self.max_bytes:
            oldest_namespace, donor_id = next(iter(self._order))
            self.remove(donor_id, namespace=oldest_namespace)
            self._dropped_donors += 1

    def _bytes_with(self, rows: int, namespace: bytes) -> int:
        """The index's largest possible size with one more donor of this many rows."""
        shard = self._shards.get(namespace)
        graphs = self._graphs
        if (shard is None or shard.graph is None) and rows + len(shard or ()) > self._exact_limit:
            graphs += 1
        return (
            (self._rows + rows) * self._row_bytes
            + (len(self._order) + 1) * DONOR_BYTES
            + (len(self._shards) + 1) * SHARD_BYTES
            + graphs * GRAPH_FIXED_BYTES
        )

    def _balance(self, shard: Shard, *, added: int) -> None:
        if not self._can_approximate:
            return
        if shard.graph is None and len(shard) > self._exact_limit and not graph_available():
            self._can_approximate = False
            logger.warning(
                "more than %d vectors, and usearch is not installed: every search scans all of "
                "them (%s)",
                self._exact_limit,
                install_command("embedder"),
            )
            return
        before = shard.graph is not None
        shard.balance(self._exact_limit, self.dimension, added)
        self._graphs += (shard.graph is not None) - before

    def _checked(self, vectors: Vectors) -> Vectors:
        rows = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise VectorError(f"vectors: expected [n, {self.dimension}], got shape {rows.shape}")
        if not np.isfinite(rows).all():
            raise VectorError("vectors: not all values are finite")
        return normalised(rows)


def _check_namespace(namespace: bytes) -> None:
    if not namespace:
        raise NamespaceError("a vector needs a namespace key; without one it would match nothing")
