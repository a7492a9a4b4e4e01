"""Donor K/V on one rank: content-addressed segments in tiers, leased while they are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.core.tokens import TokenArray
from semblend.integration.host_memory import HostMemory, donor_bytes
from semblend.kv.donor_pieces import DonorKv, DonorPiece
from semblend.kv.layerwise import Check
from semblend.kv.pinned_arena import PinnedArena
from semblend.kv.segments import SegmentKey
from semblend.kv.tiers import DiskTier, MemoryTier, TierStack

SEGMENT_TOKENS = 512
"""Prompts that begin alike share whole segments of this size."""


def segment_keys(share_key: bytes, tokens: TokenArray) -> tuple[SegmentKey, ...]:
    """The names of a prompt's segments."""
    size = len(tokens)
    return SegmentKey.chain(share_key, tokens, [*range(0, size, SEGMENT_TOKENS), size])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Donor:
    tokens: TokenArray
    keys: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorRoom:
    """Where one rank's donors are kept."""

    host_bytes: int | None = None
    """Host memory for each rank; None takes a share of the machine's."""
    disk_bytes: int = 0
    folder: Path | None = None
    evicts: bool = True
    """Whether a rank makes room by itself; if not, its scheduler counts the bytes."""


def make_tiers(room: DonorRoom, rank: int, *, ranks: int = 1, token_bytes: int = 0) -> TierStack:
    """Host memory, and disk below it if requested; each rank has its own folder.

    With a GPU, host memory is one pinned arena; `token_bytes` is what one token takes in it.

    Raises
    ------
    SettingsError
        If more host memory was requested than is free.
    """
    disk = None
    if room.disk_bytes and room.folder is not None:
        disk = DiskTier(room.folder / f"rank{rank}", capacity_bytes=room.disk_bytes)
    # Where the scheduler counts the bytes, no rank may come to another answer than the others.
    memory = HostMemory.read() if room.evicts else None
    capacity = donor_bytes(room.host_bytes, ranks=ranks, memory=memory)
    arena = None
    if token_bytes and torch.cuda.is_available():
        arena = PinnedArena(capacity, segment_bytes=SEGMENT_TOKENS * token_bytes)
    host = MemoryTier.on_host(capacity_bytes=capacity, arena=arena, evicts=room.evicts)
    return TierStack([host], disk)


class WorkerDonors:
    """Which donors this rank holds. A donor is whole or it is lost. Thread-safe.

    Calls into the tiers are made without the lock, because they call back.
    """

    def __init__(self, tiers: TierStack) -> None:
        self.tiers = tiers
        self._donors: dict[str, _Donor] = {}
        self._users: dict[bytes, set[str]] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        tiers.add_eviction_listener(self._segment_gone)

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, donor_id: str) -> bool:
        return donor_id in self._donors

    def ids(self) -> tuple[str, ...]:
        """All of them, oldest first."""
        with self._lock:
            return tuple(self._donors)

    def claim(self, donor_id: str, tokens: TokenArray, keys: tuple[SegmentKey, ...]) -> None:
        """Note whose segments these are, before they are stored."""
        with self._lock:
            self._donors[donor_id] = _Donor(tokens=tokens, keys=keys)
            for key in keys:
                self._users.setdefault(key.digest, set()).add(donor_id)

    def holding(self, tokens: TokenArray) -> str | None:
        """A whole donor of exactly these tokens."""
        return next(
            (
                donor_id
                for donor_id, donor in list(self._donors.items())
                if np.array_equal(donor.tokens, tokens) and self.is_whole(donor_id)
            ),
            None,
        )

    def is_whole(self, donor_id: str) -> bool:
        """Whether every segment of a donor is held."""
        donor = self._donors.get(donor_id)
        return donor is not None and all(key in self.tiers for key in donor.keys)

    def lease(self, donor_id: str, start: int, end: int) -> AbstractContextManager[DonorKv]:
        """K/V that covers donor positions [start, end), protected from eviction meanwhile.

        Raises
        ------
        DonorError
            If the donor is not here, or its K/V cannot be read or fails its checksum.
        """
        return self._lease(donor_id, start, end, unchecked=False)

    def lease_unchecked(
        self, donor_id: str, start: int, end: int
    ) -> AbstractContextManager[DonorKv]:
        """The same without waiting: all its `checks` must pass before anything built on it counts.

        A donor that one of them finds corrupt is lost.
        """
        return self._lease(donor_id, start, end, unchecked=True)

    @contextmanager
    def _lease(self, donor_id: str, start: int, end: int, *, unchecked: bool) -> Iterator[DonorKv]:
        donor = self._donors.get(donor_id)
        if donor is None:
            raise DonorError(f"donor {donor_id!r} is not here")
        reach(FaultPoint.LEASE)
        pieces: list[DonorPiece] = []
        checks: list[Check] = []
        with ExitStack() as leases:
            for key in donor.keys:
                if key.start + key.length <= start or key.start >= end:
                    continue
                lease = self.tiers.acquire(key, unchecked=unchecked)
                if lease is None:
                    self._lose(donor_id)
                    raise DonorError(f"donor {donor_id!r} has lost its K/V or it is corrupt")
                leases.enter_context(lease)
                pieces.append(DonorPiece(start=key.start, kv=lease.segment.kv))
                if unchecked:
                    checks.append(partial(self.tiers.is_sound, lease))
            yield DonorKv(tokens=donor.tokens, pieces=tuple(pieces), checks=tuple(checks))

    def drop(self, donor_id: str) -> None:
        """Release a donor; segments that no other donor uses leave the tiers."""
        with self._lock:
            donor = self._donors.pop(donor_id, None)
            unused: list[SegmentKey] = []
            for key in donor.keys if donor is not None else ():
                users = self._users.get(key.digest, set())
                users.discard(donor_id)
                if not users:
                    self._users.pop(key.digest, None)
                    unused.append(key)
        for key in unused:
            self.tiers.remove(key)

    def clear(self) -> None:
        """Release all donors."""
        for donor_id in list(self._donors):
            self.drop(donor_id)
        self.take_lost()

    def take_lost(self) -> set[str]:
        """Donors lost since the last call, to report to the scheduler."""
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def close(self) -> None:
        """Release pinned memory and the disk tier's folder."""
        self.tiers.close()

    def _segment_gone(self, key: SegmentKey) -> None:
        with self._lock:
            users = tuple(self._users.get(key.digest, ()))
        for donor_id in users:
            self._lose(donor_id)

    def _lose(self, donor_id: str) -> None:
        with self._lock:
            known = donor_id in self._donors
            if known:
                self._lost.add(donor_id)
        if known:
            self.drop(donor_id)
