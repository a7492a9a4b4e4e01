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
from semblend.fleet.events.model import DonorEvicted, DonorRegistered, Event
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
        self._lock = threading.Lock()

    def apply(self, events: Iterable[Event]) -> None:
        """Take events of the log, hand them to the directory, and keep their vectors."""
        listed = list(events)
        self._directory.apply(listed)
        with self._lock:
            for event in listed:
                match event.data:
                    case DonorRegistered() as data if len(data.embedding) == self._dimension:
                        self._learn(event, data)
                    case DonorEvicted() as data:
                        self._index.remove(_name(event, data.donor_id))

    def suggest(
        self, vector: Sequence[float], namespace_id: str, *, limit: int = 8
    ) -> list[Suggestion]:
        """Live donors of the namespace nearest in meaning, best first."""
        query = np.asarray([vector], dtype=np.float32)
        with self._lock:
            # Some may be dead by now: ask for more, then keep what the directory vouches for.
            matches = self._index.search(query, 4 * limit, namespace=namespace_id.encode())
        owners = {key: name for name, keys in self._directory.donor_keys().items() for key in keys}
        found = []
        for match in matches:
            key = int(match.donor_id, 16)
            if key in owners:
                worker_id, dp_rank = owners[key]
                found.append(
                    Suggestion(
                        worker_id=worker_id, dp_rank=dp_rank, donor_key=key, cosine=match.cosine
                    )
                )
        return found[:limit]

    def _learn(self, event: Event, data: DonorRegistered) -> None:
        name = _name(event, data.donor_id)
        self._index.remove(name)
        try:
            self._index.add(
                name,
                np.asarray([data.embedding], dtype=np.float32),
                namespace=data.namespace_id.encode(),
            )
        except SemBlendError:
            return  # A vector of zeros, or no room: the donor is found by its tokens.


def _name(event: Event, donor_id: str) -> str:
    return f"{donor_key(event.worker_id, event.dp_rank, donor_id):016x}"
