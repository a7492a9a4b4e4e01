"""Connects engines' caches to a directory: a donor is visible while its blocks are resident.

For a rank whose K/V events are followed, a donor that names blocks is visible exactly while
the worker says that it holds it and all its blocks are resident. Donors that name no blocks
are copies outside the engine's cache and are not affected. Ranks that nobody follows are
trusted.

If we missed cache events, because we started late or events were lost for good, the rank is
asked to resend everything, and the blocks it then names count as resident: it has checked
after the loss, which nobody else can. Later removals are received as events.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from semblend.core.tokens import TokenArray
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    DonorsPurged,
    Event,
    GenerationReset,
)
from semblend.fleet.residency.decoding import BlockHash, BlocksStored, CacheBatch, block_name
from semblend.fleet.residency.prefixes import PrefixResidency
from semblend.fleet.residency.tracker import ResidencyTracker
from semblend.fleet.sealed_blocks import open_blocks

_COMPLETE = -2
"""In place of a generation: all cache events were received, so no confirmation is needed."""


class LiveDonors:
    """Sits between the log and a directory and receives followed ranks' cache events.

    Parameters
    ----------
    followed
        Ranks whose K/V events will be passed to :meth:`blocks`.
    secret
        The fleet's secret, which decrypts block names.
    """

    def __init__(
        self, directory: Directory, *, followed: Iterable[RankName], secret: bytes
    ) -> None:
        self._directory = directory
        self._secret = secret
        self._lock = threading.RLock()
        self._prefixes = PrefixResidency()
        self.tracker = ResidencyTracker(changed=self._changed, gone=self._prefixes.gone)
        self._believed: dict[RankName, int] = {}
        """Per followed rank: registrations of later generations count as a check."""
        for name in followed:
            self._believed[name] = -1
            # A snapshot contains donors but not their blocks.
            directory.doubt(name)

    def apply(self, events: Iterable[Event]) -> None:
        """Apply events of the log."""
        with self._lock, self._directory.as_one():
            for event in self._directory.apply(events):
                name = (event.worker_id, event.dp_rank)
                if name in self._believed:
                    self._note(name, event)

    def _note(self, name: RankName, event: Event) -> None:
        match event.data:
            case DonorRegistered() as data:
                self._registered(name, data)
            case DonorEvicted() as data:
                self.tracker.forget(name, data.donor_id)
            case GenerationReset() | DonorsPurged(namespace_id=None):
                self.tracker.forget_donors(name)

    def _registered(self, name: RankName, data: DonorRegistered) -> None:
        names: set[BlockHash] = {
            block_name(value) for part in data.segments for value in part.block_hashes
        }
        readable: tuple[int, ...] | None = ()
        if data.blocks is not None:
            readable = open_blocks(data.blocks, self._secret)
            names.update(readable or ())
        if readable is None:
            # Blocks of a kind we cannot follow: whether they are resident is unknown.
            self._directory.hide_donor(name, data.donor_id)
        elif names:
            believed = self._believed[name]
            vouched = believed != _COMPLETE and data.generation > believed
            whole = self.tracker.track(name, data.donor_id, names, vouched=vouched)
            self._directory.hide_donor(name, data.donor_id, hidden=not whole)

    # -- cache events --------------------------------------------------------------------

    def blocks(self, name: RankName, batch: CacheBatch) -> None:
        """Apply a batch of a rank's cache events."""
        with self._lock:
            for event in batch.events:
                self.tracker.apply(name, event)
                if isinstance(event, BlocksStored):
                    self._prefixes.stored(name, event)

    def started(self, name: RankName) -> None:
        """A rank's cache starts empty, and all of its batches will follow."""
        with self._lock:
            self._believed[name] = _COMPLETE
            self.tracker.reset(name)

    def missed(self, name: RankName) -> None:
        """Cache events were lost for good."""
        with self._lock:
            self._believed[name] = self._directory.generation(name)
            self.tracker.reset(name)
            if self.tracker.follows(name):
                self._directory.doubt(name)

    # -- queries ---------------------------------------------------------------------------

    def resident(
        self, tokens: TokenArray, *, salt: str | None = None, model: str = ""
    ) -> dict[RankName, int]:
        """Exact prefixes in the engines' caches; see :meth:`PrefixResidency.resident`."""
        return self._prefixes.resident(tokens, salt=salt, model=model)

    def _changed(self, name: RankName, donor_id: str, whole: bool) -> None:
        self._directory.hide_donor(name, donor_id, hidden=not whole)
