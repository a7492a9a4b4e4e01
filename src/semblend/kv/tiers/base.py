"""What tiers have in common: leases, and the statistics a tier reports."""

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
    """Segments evicted to make room."""
    corrupt: int
    """Segments that failed their checksum and were deleted."""
    errors: int
    """Failed reads or writes, each treated as a miss."""
    spare_bytes: int = 0
    """Memory kept for future segments, within the capacity."""


@dataclass(slots=True)
class TierCounters:
    """Counters of one tier. `add` is thread-safe."""

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
    """The right to read a segment until :meth:`release`. It is not evicted while leased.

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
        """Number of this admission of the key. It changes if the segment leaves and comes back."""
        self.tier = tier
        """Name of the tier that holds it."""

    @property
    def segment(self) -> Segment:
        """The segment.

        Raises
        ------
        StorageError
            If the lease was released, because its memory may have been reused.
        """
        segment = self._segment
        if segment is None:
            raise StorageError("this segment's lease was released")
        return segment

    def release(self) -> None:
        """Release the lease. Idempotent."""
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
