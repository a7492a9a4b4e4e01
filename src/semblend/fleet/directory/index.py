"""The index over all donors' sketches: array-backed, bounded, equally fast for any number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import SettingsError
from semblend.discovery.fingerprint_table import FingerprintTable
from semblend.discovery.fingerprints import HashArray, IndexArray
from semblend.fleet.directory.donor_rows import HIDDEN, LOCAL, ROW_BYTES, SHARED, DonorRows
from semblend.fleet.directory.postings import LOAD, SLOT_BYTES, PostingTable
from semblend.fleet.directory.snapshot import require_whole
from semblend.fleet.sketch import MARK_TOKENS, Sketch

_SWEEP_SHARE = 0.02
"""Share of the posting table swept per batch while dead donors wait."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewDonor:
    """What the index stores about a donor."""

    key: int
    rank: int
    namespace: int
    token_count: int
    places: int
    """LOCAL, SHARED or both."""
    hashes: HashArray
    """Both fingerprints and prefix marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one rank holds of a prompt."""

    rank: int
    covered_tokens: int
    """Estimated tokens that some live donor of the rank shares with the prompt."""
    prefix_tokens: int
    """Leading tokens that one donor shares exactly."""
    donor_key: int
    """The donor that covers most."""
    donor_covered_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDonor:
    """A donor in a shared store."""

    donor_key: int
    covered_tokens: int
    token_count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Votes:
    """Hits summed by donor."""

    donors: IndexArray
    covered: IndexArray
    """Estimated tokens that the donor shares with the prompt."""
    prefix: IndexArray

    @classmethod
    def of(
        cls, index: IndexArray, rows: IndexArray, weights: IndexArray, prefix: IndexArray
    ) -> _Votes:
        donors, inverse = np.unique(rows, return_inverse=True)
        covered = np.bincount(inverse, weights=weights[index]).astype(np.int64)
        longest = np.zeros(donors.size, dtype=np.int64)
        np.maximum.at(longest, inverse, prefix[index])
        return cls(donors=donors, covered=np.maximum(covered, longest), prefix=longest)


class SketchIndex:
    """Owns rows and postings; every live donor is found under its fingerprints.

    Not thread-safe: the directory holds the lock.
    """

    def __init__(self, *, max_donors: int, max_postings: int, ranks: int = 64) -> None:
        if max_donors < 1 or max_postings < 1:
            raise SettingsError("directory index: expected room for at least one donor")
        self.rows = DonorRows(max_donors, ranks)
        self.postings = PostingTable(max_postings, self.rows.owner)
        self._by_key = FingerprintTable(max_donors)
        self._sweeping: IndexArray | None = None
        self.refused = 0
        """Donors refused for lack of room."""

    @classmethod
    def within(cls, max_bytes: int, *, postings_per_donor: int) -> SketchIndex:
        """An index of at most `max_bytes` for donors with about that many postings."""
        per_key = SLOT_BYTES / FingerprintTable.LOAD
        per_donor = ROW_BYTES + per_key + postings_per_donor * SLOT_BYTES / LOAD
        donors = max(1, int(max_bytes / per_donor))
        return cls(max_donors=donors, max_postings=donors * postings_per_donor)

    @property
    def nbytes(self) -> int:
        """Size in bytes once every page has been touched."""
        return self.rows.capacity * ROW_BYTES + self.postings.nbytes + self._by_key.nbytes

    # -- writing -------------------------------------------------------------------

    def add(self, donors: Sequence[NewDonor]) -> None:
        """Register donors, replacing known ones. Those without room are refused."""
        newest = {donor.key: donor for donor in donors}
        self.remove(np.fromiter(newest, dtype=np.uint64, count=len(newest)))
        batch = list(newest.values())
        if len(batch) > self.rows.room:
            self.sweep_all()
        self.refused += max(0, len(batch) - self.rows.room)
        batch = batch[: self.rows.room]
        if not batch:
            return
        rows = self.rows.take(len(batch))
        keys = np.array([donor.key for donor in batch], dtype=np.uint64)
        self.rows.write(
            rows,
            keys=keys,
            ranks=np.array([donor.rank for donor in batch], dtype=np.int64),
            namespaces=np.array([donor.namespace for donor in batch], dtype=np.int64),
            tokens=np.array([donor.token_count for donor in batch], dtype=np.int64),
            places=np.array([donor.places for donor in batch], dtype=np.int64),
        )
        self._by_key.add(keys, rows)
        sizes = [donor.hashes.size for donor in batch]
        self.postings.add(np.concatenate([donor.hashes for donor in batch]), np.repeat(rows, sizes))
        self.sweep_some()

    def remove(self, keys: HashArray) -> int:
        """Remove donors by key; return how many were live."""
        return self.rows.kill(self.rows_of(keys))

    def drop_rank(self, rank: int) -> int:
        """Remove all donors of a rank; return how many were live."""
        return self.rows.drop_rank(rank)

    def rows_of(self, keys: HashArray) -> IndexArray:
        """Rows of live donors with these keys."""
        index, rows = self._by_key.find(keys)
        same = (self.rows.key[rows] == keys[index]) & self.rows.is_live(rows)
        found: IndexArray = rows[same]
        return found

    # -- reading -------------------------------------------------------------------

    def holdings(
        self, sketch: Sketch, namespace: int, *, hidden: IndexArray
    ) -> tuple[list[Holding], SharedDonor | None]:
        """What each rank holds of a prompt, and the best donor in the shared store.

        Parameters
        ----------
        namespace
            Number of the prompt's namespace; donors of other namespaces are not even counted.
        hidden
            Ranks to leave out.
        """
        probes = np.concatenate((sketch.hashes, sketch.marks))
        index, rows = self.postings.find(probes)
        keep = self.rows.is_live(rows) & (self.rows.namespace[rows] == namespace)
        keep &= (self.rows.places[rows] & HIDDEN) == 0
        if hidden.size:
            keep &= ~np.isin(self.rows.rank[rows], hidden)
        index, rows = index[keep], rows[keep]
        if not index.size:
            return [], None
        weights = np.concatenate((sketch.weights, np.zeros(sketch.marks.size, dtype=np.int64)))
        prefix = np.zeros(weights.size, dtype=np.int64)
        prefix[sketch.hashes.size :] = np.arange(1, sketch.marks.size + 1) * MARK_TOKENS
        votes = _Votes.of(index, rows, weights, prefix)
        places = self.rows.places[votes.donors]
        local = np.flatnonzero(places & LOCAL)
        ranks = self.rows.rank[votes.donors[local]].astype(np.int64)
        hit_rank = np.where(self.rows.places[rows] & LOCAL, self.rows.rank[rows], -1)
        holdings = []
        for rank in np.unique(ranks):
            mine = local[ranks == rank]
            # A fingerprint that several donors hold counts once per rank.
            covered = int(weights[np.unique(index[hit_rank == rank])].sum())
            best = mine[np.argmax(votes.covered[mine])]
            longest = int(votes.prefix[mine].max())
            holdings.append(
                Holding(
                    rank=int(rank),
                    covered_tokens=max(covered, longest),
                    prefix_tokens=longest,
                    donor_key=int(self.rows.key[votes.donors[best]]),
                    donor_covered_tokens=int(votes.covered[best]),
                )
            )
        return holdings, self._best_shared(votes, np.flatnonzero(places & SHARED))

    def _best_shared(self, votes: _Votes, among: IndexArray) -> SharedDonor | None:
        if not among.size:
            return None
        best = among[np.argmax(votes.covered[among])]
        row = votes.donors[best]
        return SharedDonor(
            donor_key=int(self.rows.key[row]),
            covered_tokens=int(votes.covered[best]),
            token_count=int(self.rows.tokens[row]),
        )

    # -- cleaning ------------------------------------------------------------------

    def sweep_some(self) -> None:
        """Clear some dead donors' slots; the rows become free when a pass is complete."""
        if self._sweeping is None:
            if self.rows.dead_count <= max(64, self.rows.used // 8):
                return
            self._sweeping = self.rows.dead_rows()
        strip = max(1024, int(self.postings.tags.shape[0] * _SWEEP_SHARE))
        if self.postings.sweep(strip):
            self._free(self._sweeping)
            self._sweeping = None

    def sweep_all(self) -> None:
        """Clear all dead donors' slots now."""
        while not self.postings.sweep(self.postings.tags.shape[0]):
            pass
        dead = self.rows.dead_rows()
        self.postings.sweep(self.postings.tags.shape[0])
        self._free(dead)
        self._sweeping = None

    def _free(self, rows: IndexArray) -> None:
        self._by_key.remove(self.rows.key[rows], rows)
        self.rows.give_back(rows)

    # -- snapshots -----------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything a snapshot keeps."""
        return {**self.rows.arrays(), **self.postings.arrays()}

    def restore(self, arrays: dict[str, npt.NDArray[Any]], *, ranks: int) -> None:
        """Load a snapshot's arrays, from an index of the same size with this many ranks.

        Raises
        ------
        SerialisationError
            If they are inconsistent; nothing has changed then.
        """
        require_whole(arrays, self.arrays(), capacity=self.rows.capacity, ranks=ranks)
        self.rows.restore(arrays)
        self.postings.tags[:] = arrays["posting_tags"]
        self.postings.donors[:] = arrays["posting_donors"]
        rows = self.rows.live_rows()
        self._by_key.add(self.rows.key[rows], rows)
