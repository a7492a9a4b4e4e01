"""The directory: consumes events and answers which rank holds what of a prompt.

It never claims more than the ranks have said. A missing event id, a new generation or a
silent worker removes donors, and only the rank's own events bring them back. It may know
less than there is, and then asks the rank to resend everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import SerialisationError
from semblend.fleet.directory.answers import DirectoryStats, Found, WorkerHolding
from semblend.fleet.directory.donor_rows import HIDDEN, places_of
from semblend.fleet.directory.index import Holding, NewDonor, SketchIndex
from semblend.fleet.directory.ranks import Liveness, NamespaceKinds, Rank, RankBook, RankName
from semblend.fleet.directory.snapshot import read_snapshot, snapshot_meta, write_snapshot
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    DonorRelocated,
    DonorsPurged,
    Event,
    GenerationReset,
    Heartbeat,
)
from semblend.fleet.keys import donor_key
from semblend.fleet.sketch import Sketch

DEFAULT_LEASE_S = 10.0
DEFAULT_MAX_BYTES = 512 * 2**20
DEFAULT_POSTINGS_PER_DONOR = 64


class Directory:
    """One replica's view of the fleet's donors. Thread-safe; lookups never leave the process.

    Parameters
    ----------
    lease_s
        A rank is visible while its last heartbeat is younger than this; its donors are
        dropped after ten times as long. None requires no heartbeats.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        index: SketchIndex | None = None,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index or SketchIndex.within(
            DEFAULT_MAX_BYTES, postings_per_donor=DEFAULT_POSTINGS_PER_DONOR
        )
        self.lease_s = lease_s
        self._clock = clock
        self.ranks = RankBook()
        self._namespaces: dict[str, int] = {}
        self._kinds = NamespaceKinds()
        # Collected while a batch is read, so that the index is updated in one step.
        self._new: dict[int, NewDonor] = {}
        self._gone: list[int] = []
        self._lock = threading.RLock()
        self._resync_listeners: list[Callable[[RankName], None]] = []
        self.events = 0
        self.duplicates = 0
        self.gaps = 0

    def on_doubt(self, listener: Callable[[RankName], None]) -> None:
        """Call `listener` with every rank that should resend everything."""
        self._resync_listeners.append(listener)

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Make lookups see everything applied inside on this thread, or nothing."""
        with self._lock:
            yield

    # -- input ---------------------------------------------------------------------

    def apply(self, events: Iterable[Event]) -> list[Event]:
        """Apply events in the order received; return those not seen before.

        The others have no effect.
        """
        doubted: list[RankName] = []
        taken: list[Event] = []
        with self._lock:
            now = self._clock()
            for event in events:
                rank = self._rank((event.worker_id, event.dp_rank), now)
                self.events += 1
                doubt_before, seen_before = rank.in_doubt, self.duplicates
                self._take(rank, event)
                if self.duplicates == seen_before:
                    taken.append(event)
                if rank.in_doubt and not doubt_before:
                    doubted.append(rank.name)
            self._flush()
        self._tell(doubted)
        return taken

    def hear(self, beat: Heartbeat) -> None:
        """Process a heartbeat: the rank is alive. It stays hidden while we lag behind it."""
        with self._lock:
            now = self._clock()
            rank = self._rank((beat.worker_id, beat.dp_rank), now)
            if beat.generation < rank.generation:
                return
            rank.heard_at = now
            if beat.generation > rank.generation:
                # Its reset is on its way or was missed: what we know belongs to an earlier life.
                self._forget(rank)
                rank.in_doubt = True
            elif rank.waits_too_long(beat.last_event_id, now, self.lease_s or DEFAULT_LEASE_S):
                self.gaps += 1
                self._forget(rank)
                rank.in_doubt = True
                rank.awaited_id = -1
            elif beat.last_event_id <= rank.last_event_id:
                rank.liveness = Liveness.ALIVE
            doubted = rank.in_doubt
        if doubted:
            self._tell([(beat.worker_id, beat.dp_rank)])

    def expire(self) -> list[RankName]:
        """Hide silent ranks and drop long-silent ones; return the newly hidden ones.

        Call it about every second.
        """
        hidden: list[RankName] = []
        if self.lease_s is None:
            return hidden
        with self._lock:
            now = self._clock()
            for rank in self.ranks:
                silent = now - rank.heard_at
                if silent > self.lease_s and rank.liveness is Liveness.ALIVE:
                    rank.liveness = Liveness.SUSPENDED
                    hidden.append(rank.name)
                if silent > 10 * self.lease_s and self._index.rows.rank_live[rank.number]:
                    self._forget(rank)
                    rank.in_doubt = True
        return hidden

    def doubt(self, name: RankName) -> None:
        """Drop a rank's donors and ask it to resend everything."""
        with self._lock:
            rank = self.ranks.get(name)
            if rank is None:
                return
            self._forget(rank)
            rank.in_doubt = True
        self._tell([name])

    def generation(self, name: RankName) -> int:
        """The generation of a rank's current events; -1 if it is unknown."""
        with self._lock:
            rank = self.ranks.get(name)
            return -1 if rank is None else rank.generation

    def hide_donor(self, name: RankName, donor_id: str, *, hidden: bool = True) -> None:
        """Hide a donor (its blocks have not been seen), or show it again."""
        with self._lock:
            self._flush()
            places = self._index.rows.places
            rows = self._index.rows_of(np.array([donor_key(*name, donor_id)], dtype=np.uint64))
            places[rows] = (places[rows] & ~np.uint8(HIDDEN)) | (HIDDEN if hidden else 0)

    # -- queries -------------------------------------------------------------------

    def lookup(self, sketch: Sketch, namespace_id: str) -> Found:
        """What each live rank holds of a prompt, largest coverage first."""
        with self._lock:
            namespace = self._namespaces.get(namespace_id)
            if namespace is None:
                return Found()
            holdings, shared = self._index.holdings(sketch, namespace, hidden=self._hidden())
            named = [self._named(holding) for holding in holdings]
        named.sort(key=lambda item: (-item.covered_tokens, item.worker_id))
        return Found(holdings=tuple(named), shared=shared)

    def _hidden(self) -> npt.NDArray[np.int64]:
        silent = [rank.number for rank in self.ranks if rank.liveness is not Liveness.ALIVE]
        return np.array(silent, dtype=np.int64)

    def donor_keys(self) -> dict[RankName, frozenset[int]]:
        """All visible donors by rank; tests compare this with the truth."""
        with self._lock:
            rows = self._index.rows
            live = rows.live_rows()
            live = live[(rows.places[live] & HIDDEN) == 0]
            return {
                rank.name: frozenset(rows.key[live[rows.rank[live] == rank.number]].tolist())
                for rank in self.ranks
                if rank.liveness is Liveness.ALIVE
            }

    def owners(self, keys: Sequence[int]) -> dict[int, RankName]:
        """The owners of these donors, if visible."""
        with self._lock:
            rows = self._index.rows
            found = self._index.rows_of(np.array(keys, dtype=np.uint64))
            owned = {
                int(rows.key[row]): self.ranks.by_number(int(rows.rank[row]))
                for row in found
                if not rows.places[row] & HIDDEN
            }
        return {k: rank.name for k, rank in owned.items() if rank.liveness is Liveness.ALIVE}

    def namespace_kinds(self) -> list[dict[str, Any]]:
        """Every distinct namespace that ranks published at start, newest last."""
        with self._lock:
            return self._kinds.listed()

    def stats(self) -> DirectoryStats:
        with self._lock:
            return DirectoryStats(
                donors=self._index.rows.live_count,
                ranks=len(self.ranks),
                suspended_ranks=sum(r.liveness is Liveness.SUSPENDED for r in self.ranks),
                ranks_in_doubt=sum(r.in_doubt for r in self.ranks),
                index_bytes=self._index.nbytes,
                events=self.events,
                duplicates=self.duplicates,
                gaps=self.gaps,
                refused_donors=self._index.refused,
                dropped_postings=self._index.postings.dropped,
            )

    # -- snapshots -------------------------------------------------------------------

    def save(self, path: Path, *, position: int = 0) -> int:
        """Write a snapshot and return its size. `position` is how far the log was read."""
        with self._lock:
            self._flush()
            meta = {
                "position": position,
                "max_donors": self._index.rows.capacity,
                "buckets": int(self._index.postings.tags.shape[0]),
                "namespaces": list(self._namespaces),
                "ranks": [rank.to_dict() for rank in self.ranks],
            }
            return write_snapshot(path, meta, self._index.arrays())

    def load(self, path: Path) -> int:
        """Load a snapshot; return the log position to continue from.

        Ranks stay hidden until they send a heartbeat.

        Raises
        ------
        SerialisationError
            If it is damaged or from an index of another size. The directory is unchanged.
        StorageError
            If it cannot be read.
        """
        meta, arrays = read_snapshot(path)
        with self._lock:
            mine = (self._index.rows.capacity, int(self._index.postings.tags.shape[0]))
            theirs = (meta.get("max_donors"), meta.get("buckets"))
            if mine != theirs:
                raise SerialisationError(
                    f"snapshot {path.name}: from an index of another size ({theirs}, here {mine})"
                )
            if len(self.ranks):
                raise SerialisationError("snapshot: only an empty directory can load one")
            ranks, names, position = snapshot_meta(meta)
            book = RankBook()
            book.restore(ranks, self._clock())
            self._index.restore(arrays, ranks=len(book))
            self._index.rows.places &= ~np.uint8(HIDDEN)  # Only engines know this, not files.
            self.ranks = book
            for rank in book:
                self._kinds.add(rank.namespace)
            self._namespaces = {name: number for number, name in enumerate(names)}
        return position

    # -- internals -------------------------------------------------------------------

    def _rank(self, name: RankName, now: float) -> Rank:
        rank = self.ranks.of(name, now)
        if rank.number >= self._index.rows.rank_epoch.size:
            self._index.rows.grow_ranks(len(self.ranks))
        if self.lease_s is None:
            rank.liveness = Liveness.ALIVE
        return rank

    def _take(self, rank: Rank, event: Event) -> None:
        data = event.data
        if isinstance(data, GenerationReset):
            self._reset(rank, event.event_id, data)
            return
        if event.event_id <= rank.last_event_id or data.generation < rank.generation:
            self.duplicates += 1
            return
        missed = rank.last_event_id >= 0 and event.event_id != rank.last_event_id + 1
        if missed or data.generation > rank.generation:
            # The missed events may have been evictions, so nothing known before is certain. This
            # event and later ones are, so they are applied.
            self.gaps += missed
            self._forget(rank)
            rank.in_doubt = True
        rank.generation, rank.last_event_id = data.generation, event.event_id
        match data:
            case DonorRegistered():
                donor = self._new_donor(rank, data)
                self._new[donor.key] = donor
            case DonorEvicted():
                key = donor_key(*rank.name, data.donor_id)
                self._new.pop(key, None)
                self._gone.append(key)
            case DonorsPurged():
                self._flush()
                self._purge(rank, data.namespace_id)
            case DonorRelocated():
                self._flush()
                self._relocate(rank, data)

    def _reset(self, rank: Rank, event_id: int, data: GenerationReset) -> None:
        if data.generation <= rank.generation and event_id <= rank.last_event_id:
            self.duplicates += 1
            return
        self._forget(rank)
        rank.generation, rank.last_event_id = data.generation, event_id
        rank.in_doubt = False
        rank.namespace = data.namespace
        self._kinds.add(data.namespace)

    def _new_donor(self, rank: Rank, data: DonorRegistered) -> NewDonor:
        number = self._namespaces.setdefault(data.namespace_id, len(self._namespaces))
        marks = np.array([segment.digest for segment in data.segments], dtype=np.uint64)
        return NewDonor(
            key=donor_key(*rank.name, data.donor_id),
            rank=rank.number,
            namespace=number,
            token_count=min(data.token_count, 2**32 - 1),
            places=places_of(data.location),
            hashes=np.concatenate((data.hashes, marks)),
        )

    def _purge(self, rank: Rank, namespace_id: str | None) -> None:
        if namespace_id is None:
            self._index.drop_rank(rank.number)
            return
        number = self._namespaces.get(namespace_id, -1)
        rows = self._index.rows
        live = rows.live_rows()
        mine = (rows.rank[live] == rank.number) & (rows.namespace[live] == number)
        rows.kill(live[mine])

    def _relocate(self, rank: Rank, data: DonorRelocated) -> None:
        key = np.array([donor_key(*rank.name, data.donor_id)], dtype=np.uint64)
        rows = self._index.rows_of(key)
        places = self._index.rows.places
        places[rows] = (places[rows] & HIDDEN) | places_of(data.new_location)

    def _forget(self, rank: Rank) -> int:
        self._flush()
        return self._index.drop_rank(rank.number)

    def _flush(self) -> None:
        """Apply what was collected to the index: evictions first, then registrations."""
        if self._gone:
            gone, self._gone = self._gone, []
            self._index.remove(np.array(gone, dtype=np.uint64))
        if self._new:
            new, self._new = self._new, {}
            self._index.add(list(new.values()))

    def _named(self, holding: Holding) -> WorkerHolding:
        worker_id, dp_rank = self.ranks.by_number(holding.rank).name
        return WorkerHolding(
            worker_id=worker_id,
            dp_rank=dp_rank,
            covered_tokens=holding.covered_tokens,
            prefix_tokens=holding.prefix_tokens,
            donor_key=holding.donor_key,
            donor_covered_tokens=holding.donor_covered_tokens,
        )

    def _tell(self, doubted: list[RankName]) -> None:
        for name in doubted:
            for listener in self._resync_listeners:
                listener(name)
