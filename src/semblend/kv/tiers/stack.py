"""Device over host over disk: one place to store segments and lease them from.

A segment is looked up in the fastest tier first and moves up when it is used. A tier that makes
room passes its least recently used segment to the tier below. Lower copies stay, so demoting a
segment that was promoted costs nothing. Any failure in a tier is counted and becomes a miss:
callers get a lease, or None and compute the tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import torch

from semblend.core.errors import CapacityError, StorageError
from semblend.kv.segments import Segment, SegmentKey, require_exact
from semblend.kv.tiers.base import Lease, TierStats
from semblend.kv.tiers.disk import DiskTier
from semblend.kv.tiers.memory import MemoryTier

logger = logging.getLogger("semblend.kv")

_LOAD_WAIT_S = 2.0
"""How long to wait for another thread's load of the same segment before it is a miss."""

_HOST = torch.device("cpu")

EvictionListener = Callable[[SegmentKey], None]


@dataclass(slots=True)
class TierStack:
    """Memory tiers, fastest first, and at most one disk tier below them. Thread-safe.

    Eviction listeners are called, outside all locks, with every key that no tier holds any longer.
    A donor that relied on it is gone.
    """

    memory: Sequence[MemoryTier]
    disk: DiskTier | None = None
    _listeners: list[EvictionListener] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = tuple(self.memory)
        names = [tier.name for tier in self.memory]
        if not names or len(set(names)) != len(names):
            raise StorageError(
                f"tier stack: expected at least one memory tier and distinct names, got {names}"
            )

    def __contains__(self, key: SegmentKey) -> bool:
        held = any(key in tier for tier in self.memory)
        return held or (self.disk is not None and key in self.disk)

    def add_eviction_listener(self, listener: EvictionListener) -> None:
        """Call `listener` with every key that is lost."""
        self._listeners.append(listener)

    def put(self, segment: Segment) -> str | None:
        """Store a segment in the fastest tier it fits. Returns that tier's name, or None.

        Raises
        ------
        DonorError
            If the segment is tainted.
        """
        require_exact(segment)
        return self.put_from(segment.key, segment.nbytes, lambda: segment)

    def put_from(self, key: SegmentKey, nbytes: int, load: Callable[[], Segment]) -> str | None:
        """Like :meth:`put`, but the segment is loaded only once there is room for it.

        If `load` raises, the error is logged and the result is None.
        """
        left: list[SegmentKey] = []
        try:
            return self._put_from_level(0, key, nbytes, load, left)
        finally:
            self._tell(left)

    def could_hold(self, nbytes: int) -> bool:
        """Whether this many bytes would fit in memory and on disk if everything evictable went."""
        below = 0 if self.disk is None else self.disk.capacity_bytes
        room = sum(tier.capacity_bytes - tier.leased_bytes for tier in self.memory)
        return nbytes <= room + below

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for a segment that is on `device` now: there, if a tier is there, or where the
        fastest
        tier is. Uses a tier's spare memory if possible.
        """
        tiers = (tier for tier in reversed(self.memory) if tier.device == device)
        return next(tiers, self.memory[0]).empty(shape, dtype)

    def prepare(self, ahead_bytes: int) -> bool:
        """Touch a slice of host memory for future segments. False if there is enough."""
        return any(tier.prepare(ahead_bytes) for tier in self.memory)

    def acquire(self, key: SegmentKey, *, unchecked: bool = False) -> Lease | None:
        """Lease a segment from the fastest tier it can be moved to, or None.

        None is a normal answer: not held, corrupt, unreadable, or no room in memory. The tokens are
        then computed. An `unchecked` lease may be read at once; call :meth:`is_sound` before its
        use takes effect.
        """
        left: list[SegmentKey] = [key] if key in self else []
        # The device tier does not check on load, so nothing unchecked moves up into it.
        stays = key in self.memory[0]
        try:
            lease = self._find(key, left, unchecked=unchecked and stays)
            return None if lease is None else self._climb(lease, left)
        finally:
            self._tell(left)

    def is_sound(self, lease: Lease) -> bool:
        """Whether an unchecked lease has its checksum. A corrupt segment is dropped."""
        tier = next(tier for tier in self.memory if tier.name == lease.tier)
        sound = tier.is_sound(lease)
        if not sound:
            self._tell([lease.segment.key])
        return sound

    def remove(self, key: SegmentKey) -> bool:
        """Drop a segment from all tiers. Leases stay valid until they are released."""
        removed = [tier.remove(key) for tier in self.memory]
        if self.disk is not None:
            try:
                removed.append(self.disk.remove(key))
            except Exception:
                logger.warning("segment %s was not deleted", key.name[:16], exc_info=True)
        if any(removed):
            self._tell([key])
        return any(removed)

    def stats(self) -> tuple[TierStats, ...]:
        """A snapshot of every tier, fastest first."""
        stats = [tier.stats() for tier in self.memory]
        return tuple(stats) if self.disk is None else (*stats, self.disk.stats())

    def close(self) -> None:
        """Release pinned memory and the disk tier's folder."""
        for tier in self.memory:
            tier.close()
        if self.disk is not None:
            self.disk.close()

    def __enter__(self) -> TierStack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _put_from_level(
        self,
        level: int,
        key: SegmentKey,
        nbytes: int,
        load: Callable[[], Segment],
        left: list[SegmentKey],
    ) -> str | None:
        """Store a segment in the first tier from `level` down that takes it."""
        for index, tier in enumerate(self.memory[level:], start=level):
            demote = partial(self._demote, index, left)
            try:
                tier.put_from(key, nbytes, load, demote=demote, left=left.append)
            except CapacityError:
                continue
            except Exception:
                logger.warning("segment %s was not stored", key.name[:16], exc_info=True)
                return None
            return tier.name
        if self.disk is None:
            return None
        try:
            self.disk.put(load(), left=left.append)
        except CapacityError:
            return None
        except Exception:
            logger.warning("segment %s was not stored", key.name[:16], exc_info=True)
            return None
        return self.disk.name

    def _demote(self, level: int, left: list[SegmentKey], segment: Segment) -> None:
        """Pass a victim of the tier at `level` to the tiers below. Losing it is not an error."""
        self._put_from_level(level + 1, segment.key, segment.nbytes, lambda: segment, left)

    def _find(self, key: SegmentKey, left: list[SegmentKey], *, unchecked: bool) -> Lease | None:
        """A lease from the fastest memory tier that holds the key, read from disk if necessary."""
        try:
            for tier in self.memory:
                lease = tier.acquire(key, unchecked=unchecked)
                if lease is not None:
                    return lease
            return None if self.disk is None else self._read_from_disk(self.disk, key, left)
        except Exception:
            logger.warning("segment %s was not loaded", key.name[:16], exc_info=True)
            return None

    def _read_from_disk(
        self, disk: DiskTier, key: SegmentKey, left: list[SegmentKey]
    ) -> Lease | None:
        """Load a segment into the slowest memory tier, reading it only once there is room."""
        nbytes = disk.nbytes(key)
        if nbytes is None:
            return None

        def load() -> Segment:
            segment = disk.load(key, empty=partial(self.empty, device=_HOST))
            if segment is None:
                raise StorageError("it was deleted or is corrupt")
            return segment

        for index in reversed(range(len(self.memory))):
            tier = self.memory[index]
            try:
                demote = partial(self._demote, index, left)
                tier.put_from(key, nbytes, load, demote=demote, left=left.append)
            except CapacityError:
                continue
            # Another thread may be reading the same file; its result serves both.
            return tier.acquire(key, wait_s=_LOAD_WAIT_S)
        return None

    def _climb(self, lease: Lease, left: list[SegmentKey]) -> Lease:
        """Move a lease up to the fastest tier with room, or leave it in place."""
        names = [tier.name for tier in self.memory]
        for index in reversed(range(names.index(lease.tier))):
            tier = self.memory[index]
            try:
                tier.put(lease.segment, demote=partial(self._demote, index, left), left=left.append)
            except Exception:  # already held, and valid where it is
                break
            higher = tier.acquire(lease.segment.key)
            if higher is None:
                break
            lease.release()
            lease = higher
        return lease

    def _tell(self, left: Sequence[SegmentKey]) -> None:
        """Notify listeners of the keys that no tier holds any longer."""
        for key in dict.fromkeys(left):
            if key in self:
                continue
            for listener in self._listeners:
                try:
                    listener(key)
                except Exception:
                    logger.exception("an eviction listener failed")
