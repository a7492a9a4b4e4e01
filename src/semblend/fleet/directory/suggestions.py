"""Donors by meaning: what vectors suggest, filtered by what the directory knows to be live.

Fingerprints decide, vectors suggest. A suggestion says that a rank holds something that is
about the same; no token of it is counted as shared. Vectors tell something of a text, so
workers publish none unless they are told to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from semblend.core.errors import SemBlendError
from semblend.discovery.vector_index import VectorIndex
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.events.model import DonorEvicted, DonorRegistered, Event, GenerationReset
from semblend.fleet.keys import donor_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A live donor that means about the same."""

    worker_id: str
    dp_rank: int
    donor_key: int
    cosine: float


class Suggestions:
    """Vectors of one dimension beside a directory. Thread-safe; bounded in bytes.

    Stands between the log and the directory (see `LogFollower`'s `apply`), or beside it.
    """

    def __init__(
        self, directory: Directory, *, dimension: int, max_bytes: int = 64 * 2**20
    ) -> None:
        self._directory = directory
        self._dimension = dimension
        self._index = VectorIndex(dimension, max_bytes=max_bytes)
        self._namespaces: dict[RankName, dict[str, bytes]] = {}
        self._lock = threading.Lock()

    def apply(self, events: Iterable[Event]) -> None:
        """Take events of the log, hand them to the directory, and keep their vectors."""
        listed = list(events)
        self._directory.apply(listed)
        with self._lock:
            for event in listed:
                rank = (event.worker_id, event.dp_rank)
                match event.data:
                    case DonorRegistered() as data if len(data.embedding) == self._dimension:
                        self._learn(rank, data)
                    case DonorEvicted() as data:
                        self._forget(rank, _name(rank, data.donor_id))
                    case GenerationReset():
                        for name in tuple(self._namespaces.get(rank, ())):
                            self._forget(rank, name)

    def suggest(
        self, vector: Sequence[float], namespace_id: str, *, limit: int = 8
    ) -> list[Suggestion]:
        """Live donors of the namespace nearest in meaning, best first."""
        query = np.asarray([vector], dtype=np.float32)
        with self._lock:
            # Some may be dead by now: ask for more, then keep what the directory vouches for.
            matches = self._index.search(query, 4 * limit, namespace=namespace_id.encode())
        keys = [int(match.donor_id, 16) for match in matches]
        owners = self._directory.owners(keys)
        found = []
        for key, match in zip(keys, matches, strict=True):
            if key in owners:
                worker_id, dp_rank = owners[key]
                found.append(
                    Suggestion(
                        worker_id=worker_id, dp_rank=dp_rank, donor_key=key, cosine=match.cosine
                    )
                )
        return found[:limit]

    def _learn(self, rank: RankName, data: DonorRegistered) -> None:
        name, namespace = _name(rank, data.donor_id), data.namespace_id.encode()
        try:
            self._index.add(
                name, np.asarray([data.embedding], dtype=np.float32), namespace=namespace
            )
        except SemBlendError:
            return  # A vector of zeros, or no room: the donor is found by its tokens.
        self._namespaces.setdefault(rank, {})[name] = namespace

    def _forget(self, rank: RankName, name: str) -> None:
        namespace = self._namespaces.get(rank, {}).pop(name, None)
        if namespace is not None:
            self._index.remove(name, namespace=namespace)


def _name(rank: RankName, donor_id: str) -> str:
    return f"{donor_key(*rank, donor_id):016x}"
