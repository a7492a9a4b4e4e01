"""Donors and the index over their tokens, within a byte limit.

Content is stored once. A donor is a list of pieces, each a range of a *chunk*. Content that a chunk
already holds is referenced, not copied, and lives as long as any donor refers to it. Pieces overlap
by 31 tokens, so every 32-token window of a donor is inside one chunk and can be found.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from semblend.core.errors import CapacityError, DonorError
from semblend.core.faults import FaultPoint, fault_point, reach
from semblend.core.tokens import TokenArray
from semblend.discovery.fingerprint_table import SLOT_BYTES, FingerprintTable
from semblend.discovery.fingerprints import (
    FINGERPRINTS_PER_TOKEN,
    GUARANTEED_RUN_TOKENS,
    IndexArray,
    fingerprints,
    seed_of,
)
from semblend.discovery.matching import ChunkRuns, find_runs
from semblend.discovery.pieces import Piece, shared_pieces, unshared_ranges, without
from semblend.discovery.runs import DonorRun, join_runs
from semblend.discovery.token_arena import PAGE_BYTES, PAGE_TOKENS, PageRun, TokenArena, pages_for

DONOR_BYTES = 900
CHUNK_BYTES = 700
"""Size of a donor's and a chunk's Python objects, measured with tracemalloc (test_donor_store)."""
MAX_HOLDERS_TRIED = 16
NEAR_TOKENS = 32
"""Text that moves no further keeps its neighbours and its depth: an edit before it moved it."""

_PAGE_COST = PAGE_BYTES + PAGE_TOKENS * FINGERPRINTS_PER_TOKEN * SLOT_BYTES / FingerprintTable.LOAD


@dataclass(slots=True)
class _Chunk:
    run: PageRun
    namespace: bytes
    holders: dict[str, list[Piece]] = field(default_factory=dict)


@dataclass(slots=True)
class _NamespaceUse:
    number: int
    donors: int = 0


@dataclass(frozen=True, slots=True)
class Donor:
    """A request whose exactly computed K/V is still held."""

    donor_id: str
    namespace: bytes
    token_count: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What the store knows about a prompt."""

    runs: tuple[DonorRun, ...] = ()
    fingerprint_hits: int = 0


class StoreFollower(Protocol):
    """Follows which donors are held. Called under the store's lock, in order, so it must return at
    once and must not call back.
    """

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: bytes) -> None:
        """A donor can now be found."""
        ...

    def donor_lost(self, donor_id: str) -> None:
        """A donor is no longer held."""
        ...


class DonorStore:
    """Holds donors, chunks and their index within `max_bytes`.

    Registration, lookup and eviction take the same time however many donors there are. Thread-safe.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        pages = int(max_bytes // _PAGE_COST)
        self._arena = TokenArena(pages)
        self._table = FingerprintTable(int(pages * PAGE_TOKENS * FINGERPRINTS_PER_TOKEN))
        self._donors: OrderedDict[str, Donor] = OrderedDict()
        self._chunks: dict[int, _Chunk] = {}
        self._free_numbers: list[int] = []
        self._namespaces: dict[bytes, _NamespaceUse] = {}
        self._namespace_numbers = itertools.count()
        # By chunk number, so that a thousand hits are checked in one step.
        self._chunk_namespace: npt.NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        self._chunk_length: IndexArray = np.zeros(1024, dtype=np.int64)
        self._listeners: list[Callable[[str], None]] = []
        self._followers: list[StoreFollower] = []
        self._lock = threading.RLock()
        self.registrations = 0
        self.evictions = 0

    # -- reading ---------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, donor_id: str) -> bool:
        return donor_id in self._donors

    @property
    def used_bytes(self) -> int:
        """Bytes used by what is stored now."""
        pages = self._arena.capacity_pages - self._arena.free_pages
        return int(
            pages * _PAGE_COST + len(self._donors) * DONOR_BYTES + len(self._chunks) * CHUNK_BYTES
        )

    @property
    def stored_tokens(self) -> int:
        """Tokens physically stored; shared content counts once."""
        with self._lock:
            return sum(chunk.run.length for chunk in self._chunks.values())

    def donor(self, donor_id: str) -> Donor | None:
        """The donor with this id, or None."""
        return self._donors.get(donor_id)

    def donor_tokens(self, donor_id: str) -> TokenArray | None:
        """A donor's token ids, shape [token_count], or None if it is not held."""
        with self._lock:
            donor = self._donors.get(donor_id)
            if donor is None:
                return None
            tokens = np.empty(donor.token_count, dtype=np.int32)
            for piece in donor.pieces:
                text = self._arena.read(self._chunks[piece.chunk].run)
                tokens[piece.donor_start : piece.donor_start + piece.length] = text[
                    piece.chunk_start : piece.chunk_start + piece.length
                ]
            return tokens

    @fault_point(FaultPoint.INDEX_READ)
    def lookup(self, tokens: TokenArray, namespace: bytes) -> Lookup:
        """Every maximal run of at least 32 tokens shared with a donor of this namespace.

        If several donors hold the same content, one is named, preferably one that also holds the
        neighbouring content, or holds it at about the same position.
        """
        with self._lock:
            runs = self._chunk_runs(tokens, namespace)
            if not len(runs):
                return Lookup(fingerprint_hits=runs.hits)
            return Lookup(runs=tuple(self._name_donors(runs)), fingerprint_hits=runs.hits)

    def touch(self, donor_ids: tuple[str, ...]) -> None:
        """Mark donors as just used, so that they are evicted last."""
        with self._lock:
            for donor_id in donor_ids:
                if donor_id in self._donors:
                    self._donors.move_to_end(donor_id)

    # -- writing ---------------------------------------------------------------

    def add_eviction_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(donor_id)` after a donor was evicted to make room."""
        self._listeners.append(listener)

    def follow(self, follower: StoreFollower) -> None:
        """Notify a follower of every donor held or gone, starting with those held now."""
        with self._lock:
            for donor_id, donor in self._donors.items():
                tokens = self.donor_tokens(donor_id)
                if tokens is not None:
                    follower.donor_kept(donor_id, tokens, donor.namespace)
            self._followers.append(follower)

    def register(self, donor_id: str, tokens: TokenArray, namespace: bytes) -> Donor:
        """Hold `tokens` as a donor, evicting the least recently used donors to make room.

        Raises
        ------
        DonorError
            If the id is taken, or the prompt is too short ever to match.
        CapacityError
            If the prompt alone exceeds the store.
        """
        if tokens.size < GUARANTEED_RUN_TOKENS:
            raise DonorError(
                f"donor {donor_id!r}: {tokens.size} tokens; a run needs at least "
                f"{GUARANTEED_RUN_TOKENS} to be found"
            )
        evicted: list[str] = []
        try:
            with self._lock:
                if donor_id in self._donors:
                    raise DonorError(f"donor {donor_id!r} is already registered")
                donor = self._store(donor_id, tokens, namespace, evicted)
                self.registrations += 1
                for follower in self._followers:
                    follower.donor_kept(donor_id, tokens, namespace)
        finally:
            # Outside the lock, because a listener may call back into the store. Also on failure:
            # donors evicted to make room are gone either way.
            for gone, listener in itertools.product(evicted, self._listeners):
                listener(gone)
        return donor

    def prepare(self) -> bool:
        """Touch a slice of the index before donors need it. False once all of it is in memory."""
        with self._lock:
            return self._table.touch()

    def evict(self, donor_id: str) -> bool:
        """Drop a donor. False if it was not held."""
        with self._lock:
            donor = self._donors.pop(donor_id, None)
            if donor is None:
                return False
            self._gone(donor)
            return True

    def clear(self) -> None:
        with self._lock:
            for donor_id in list(self._donors):
                self.evict(donor_id)

    # -- the inside --------------------------------------------------------------

    def _chunk_runs(self, tokens: TokenArray, namespace: bytes) -> ChunkRuns:
        use = self._namespaces.get(namespace)
        number = -2 if use is None else use.number  # -2 equals no chunk's namespace
        return find_runs(
            tokens,
            seed=seed_of(namespace),
            table=self._table,
            arena=self._arena,
            allowed=lambda chunks: self._chunk_namespace[chunks] == number,
            lengths=self._chunk_length,
            read_chunk=lambda chunk: self._arena.read(self._chunks[chunk].run),
        )

    def _name_donors(self, runs: ChunkRuns) -> list[DonorRun]:
        """Turn runs inside chunks into runs inside donors, joined across pieces.

        Content that only one donor holds votes for that donor. Widely shared content then goes to a
        donor with votes, so that a document and its wrapper stay one span.
        """
        rows = runs.rows()
        votes: dict[str, int] = {}
        for chunk, _, start, end in rows:
            holders = self._chunks[chunk].holders
            if len(holders) == 1:
                (donor_id,) = holders
                votes[donor_id] = votes.get(donor_id, 0) + end - start
        favourites = sorted(votes, key=lambda donor_id: -votes[donor_id])[:MAX_HOLDERS_TRIED]
        found: list[DonorRun] = []
        for chunk, shift, start, end in rows:
            found.extend(self._in_holders(self._chunks[chunk], shift, start, end, favourites))
        return join_runs(found)

    def _in_holders(
        self, chunk: _Chunk, shift: int, start: int, end: int, favourites: list[str]
    ) -> list[DonorRun]:
        """The run as seen by donors that hold the chunk, until it is covered.

        A donor may hold only part of a chunk whose first owner is gone. Donors that hold the run
        near the target's own position come first, as their K/V hardly moves; then those with votes.
        """
        favoured = (donor_id for donor_id in favourites if donor_id in chunk.holders)
        recent = itertools.islice(reversed(chunk.holders), MAX_HOLDERS_TRIED)
        tried = list(dict.fromkeys(itertools.chain(favoured, recent)))
        if len(tried) > 1:
            tried.sort(key=lambda donor_id: not _near(chunk.holders[donor_id], shift))
        found: list[DonorRun] = []
        missing = [(start, end)]
        for donor_id in tried:
            for piece in chunk.holders[donor_id]:
                low = max(start, piece.chunk_start - shift)
                high = min(end, piece.chunk_start + piece.length - shift)
                if high <= low:
                    continue
                found.append(
                    DonorRun(
                        donor_id=donor_id,
                        donor_start=piece.donor_start + low + shift - piece.chunk_start,
                        target_start=low,
                        length=high - low,
                    )
                )
                missing = without(missing, low, high)
            if not missing:
                break
        return found

    def _store(
        self, donor_id: str, tokens: TokenArray, namespace: bytes, evicted: list[str]
    ) -> Donor:
        """Hold a donor completely or not at all. `evicted` collects the donors evicted for it."""
        shared = shared_pieces(self._chunk_runs(tokens, namespace))
        fresh = unshared_ranges(shared, int(tokens.size))
        pages = sum(pages_for(high - low) for low, high in fresh)
        cost = int(pages * _PAGE_COST) + DONOR_BYTES + len(fresh) * CHUNK_BYTES
        if cost > self.max_bytes or pages > self._arena.capacity_pages:
            raise CapacityError(
                f"donor {donor_id!r} needs {cost} bytes, the store has {self.max_bytes}"
            )
        use = self._namespaces.get(namespace)
        if use is None:
            use = self._namespaces[namespace] = _NamespaceUse(next(self._namespace_numbers))
        use.donors += 1
        pieces = list(shared)
        try:
            # Hold shared content before making room, so that making room cannot free it.
            for piece in shared:
                self._chunks[piece.chunk].holders.setdefault(donor_id, []).append(piece)
            while self.used_bytes + cost > self.max_bytes or pages > self._arena.free_pages:
                if not self._donors:
                    raise CapacityError(f"no room for donor {donor_id!r}")
                oldest_id, oldest = self._donors.popitem(last=False)
                self._gone(oldest)
                evicted.append(oldest_id)
            for low, high in fresh:
                chunk = self._add_chunk(tokens[low:high], namespace, use.number)
                piece = Piece(donor_start=low, chunk=chunk, chunk_start=0, length=high - low)
                self._chunks[chunk].holders[donor_id] = [piece]
                pieces.append(piece)
            reach(FaultPoint.INDEX_WRITE)
        except BaseException:
            self._release(donor_id, namespace, pieces)
            raise
        pieces.sort(key=lambda piece: piece.donor_start)
        donor = Donor(donor_id, namespace, int(tokens.size), tuple(pieces))
        self._donors[donor_id] = donor
        return donor

    def _add_chunk(self, tokens: TokenArray, namespace: bytes, namespace_number: int) -> int:
        number = self._free_numbers[-1] if self._free_numbers else len(self._chunks)
        if number >= self._chunk_length.size:
            grow = self._chunk_length.size
            self._chunk_length = np.append(self._chunk_length, np.zeros(grow, dtype=np.int64))
            self._chunk_namespace = np.append(
                self._chunk_namespace, np.full(grow, -1, dtype=np.int32)
            )
        hashes, offsets = fingerprints(tokens, seed_of(namespace))
        run = self._arena.put(tokens, number)
        try:
            self._table.add(hashes, self._arena.places(run, offsets))
        except BaseException:
            self._arena.give_back(run)
            raise
        if self._free_numbers:
            self._free_numbers.pop()  # last: a number lost on the way would be assigned twice
        self._chunks[number] = _Chunk(run, namespace)
        self._chunk_length[number] = tokens.size
        self._chunk_namespace[number] = namespace_number
        return number

    def _gone(self, donor: Donor) -> None:
        """Notify followers that a donor is gone."""
        self.evictions += 1
        for follower in self._followers:
            follower.donor_lost(donor.donor_id)
        self._release(donor.donor_id, donor.namespace, donor.pieces)

    def _release(self, donor_id: str, namespace: bytes, pieces: Iterable[Piece]) -> None:
        """Release the content a donor held or was about to hold."""
        for number in {piece.chunk for piece in pieces}:
            chunk = self._chunks[number]
            chunk.holders.pop(donor_id, None)
            if not chunk.holders:
                self._free_chunk(number, chunk)
        use = self._namespaces[namespace]
        use.donors -= 1
        if not use.donors:
            del self._namespaces[namespace]

    def _free_chunk(self, number: int, chunk: _Chunk) -> None:
        hashes, offsets = fingerprints(self._arena.read(chunk.run), seed_of(chunk.namespace))
        self._table.remove(hashes, self._arena.places(chunk.run, offsets))
        self._arena.give_back(chunk.run)
        self._chunk_namespace[number] = -1
        self._free_numbers.append(number)
        del self._chunks[number]


def _near(pieces: Iterable[Piece], shift: int) -> bool:
    """Whether a donor holds a run, found at `shift` in a chunk, about where the target has it."""
    return any(
        abs(piece.donor_start - piece.chunk_start + shift) <= NEAR_TOKENS for piece in pieces
    )
