"""What tiers have in common: leases as handles, and what a tier reports about itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from semblend.core.errors import StorageError
from semblend.kv.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """A snapshot of one tier."""

    name: str
    used_bytes: int
    capacity_bytes: int
    segments: int
    leased: int
    hits: int
    misses: int
    evictions: int
    """Segments that left to make room."""
    corrupt: int
    """Segments that failed their checksum and were deleted."""
    errors: int
    """Reads or writes that failed; each was treated as a miss."""
    spare_bytes: int = 0
    """Memory kept for segments to come, within the capacity too."""


@dataclass(slots=True)
class TierCounters:
    """Counts of one tier; `add` may be called from any thread."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    corrupt: int = 0
    errors: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)


class Lease:
    """The right to read a segment until :meth:`release`; it is not evicted while leased.

    >>> with stack.acquire(key) as lease:           # doctest: +SKIP
    ...     copy_spans(pool, copies(lease.segment), table)
    """

    __slots__ = ("_lock", "_release", "_segment", "generation", "tier")

    def __init__(
        self, *, segment: Segment, generation: int, tier: str, release: Callable[[], None]
    ) -> None:
        self._segment: Segment | None = segment
        self._release = release
        self._lock = threading.Lock()
        self.generation = generation
        """Which admission of the key this is: differs if the segment left and came back."""
        self.tier = tier
        """Name of the tier that holds it."""

    @property
    def segment(self) -> Segment:
        """The segment.

        Raises
        ------
        StorageError
            If the lease was released: its memory may hold something else by now.
        """
        segment = self._segment
        if segment is None:
            raise StorageError("the lease of this segment was released")
        return segment

    def release(self) -> None:
        """Give the lease back; doing it again changes nothing."""
        with self._lock:
            held, self._segment = self._segment is not None, None
        if held:
            self._release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
