"""Ties engines' caches to a directory: a donor with block hashes is known only while they stay."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.events.model import DonorEvicted, DonorRegistered, Event, GenerationReset
from semblend.fleet.residency.decoding import BlockHash, CacheBatch
from semblend.fleet.residency.tracker import ResidencyTracker


class LiveDonors:
    """Stands between the log and a directory.

    A registration that names blocks is held back until all of them are resident, and
    taken out of the directory as soon as one is not.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._waiting: dict[RankName, dict[str, frozenset[BlockHash]]] = {}
        self._lock = threading.RLock()
        self.tracker = ResidencyTracker(lost=self._lost, cleared=self._cleared)

    def apply(self, events: Iterable[Event]) -> None:
        """Take events of the log."""
        listed = list(events)
        with self._lock:
            self._directory.apply(listed)
            for event in listed:
                name = (event.worker_id, event.dp_rank)
                match event.data:
                    case DonorRegistered() as data:
                        blocks = frozenset(
                            _hash(value) for part in data.segments for value in part.block_hashes
                        )
                        if blocks and not self.tracker.track(name, data.donor_id, blocks):
                            self._directory.hide_donor(name, data.donor_id)
                            self._waiting.setdefault(name, {})[data.donor_id] = blocks
                    case DonorEvicted() as data:
                        self.tracker.forget(name, data.donor_id)
                        self._waiting.get(name, {}).pop(data.donor_id, None)
                    case GenerationReset():
                        self._waiting.pop(name, None)

    def blocks(self, name: RankName, batch: CacheBatch) -> None:
        """Take a batch of an engine's cache events."""
        with self._lock:
            self.tracker.apply(name, batch.events)
            for donor_id, wanted in list(self._waiting.get(name, {}).items()):
                if self.tracker.track(name, donor_id, wanted):
                    del self._waiting[name][donor_id]
                    self._directory.hide_donor(name, donor_id, hidden=False)

    def missed(self, name: RankName) -> None:
        """Cache events were lost for good."""
        self.tracker.reset(name)

    def _lost(self, name: RankName, donor_id: str) -> None:
        self._directory.drop_donor(name, donor_id)

    def _cleared(self, name: RankName) -> None:
        with self._lock:
            self._waiting.pop(name, None)
            self._directory.drop_rank(name)


def _hash(value: int | str) -> BlockHash:
    """Hashes of bytes travel as hex in JSON."""
    return bytes.fromhex(value) if isinstance(value, str) else value
