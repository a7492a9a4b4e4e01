"""Segments in memory: on the device, or on the host with every load checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from semblend.core.errors import CorruptSegmentError
from semblend.core.faults import FaultPoint, fault_point
from semblend.kv.pinned_arena import ArenaFullError, PinnedArena
from semblend.kv.segments import Segment, SegmentKey, kv_checksum, require_exact
from semblend.kv.tiers.base import Lease, TierCounters, TierStats
from semblend.kv.tiers.host_blocks import HostBlocks
from semblend.kv.tiers.leased_lru import Entry, LeasedLru


class MemoryTier:
    """Segments held as tensors on one device within a hard byte limit.

    Spare memory for future segments is also within the limit.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity_bytes: int,
        device: torch.device | str,
        checked: bool,
        pinned: bool = False,
        segment_bytes: int = 0,
        arena: PinnedArena | None = None,
        evicts: bool = True,
    ) -> None:
        self.name = name
        self.device = torch.device(device)
        self._checked = checked
        self._pinned = pinned
        self._arena = arena
        # torch, or the arena, already recycles pinned memory.
        self._blocks = HostBlocks(segment_bytes) if segment_bytes and not pinned else None
        self._table: LeasedLru[Segment] = LeasedLru(capacity_bytes, evicts=evicts)
        self._counters = TierCounters()

    @classmethod
    def on_device(cls, *, capacity_bytes: int, device: torch.device | str) -> MemoryTier:
        """The fastest tier, on the device of the engine's pool. Not checksummed on load."""
        return cls("device", capacity_bytes=capacity_bytes, device=device, checked=False)

    @classmethod
    def on_host(
        cls,
        *,
        capacity_bytes: int,
        pinned: bool | None = None,
        segment_bytes: int = 0,
        arena: PinnedArena | None = None,
        evicts: bool = True,
    ) -> MemoryTier:
        """Host memory, pinned if there is a GPU to copy to. Checksummed on every load.

        With `segment_bytes`, the size of the usual segment, :meth:`empty` gives memory that is
        used again, and :meth:`prepare` touches some ahead. With an `arena`, of the same
        capacity, all segments lie there. With `evicts` off a segment stays until it is removed.
        """
        return cls(
            "host",
            capacity_bytes=capacity_bytes,
            device="cpu",
            checked=True,
            pinned=torch.cuda.is_available() if pinned is None else pinned,
            segment_bytes=segment_bytes,
            arena=arena,
            evicts=evicts,
        )

    @property
    def capacity_bytes(self) -> int:
        return self._table.capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes held now, never above the limit."""
        return self._table.used_bytes

    @property
    def leased_bytes(self) -> int:
        """Bytes that cannot be freed now."""
        return self._table.leased_bytes()

    @property
    def spare_bytes(self) -> int:
        """Memory kept for future segments. Together with `used_bytes` never above the limit."""
        return 0 if self._blocks is None else self._blocks.spare_bytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory on this tier's device for a segment about to be put here.

        Call it inside the `load` of :meth:`put_from`, when there is room.
        """
        if self._arena is not None:
            return self._arena.empty(shape, dtype)
        if self._blocks is None:
            return torch.empty(
                tuple(shape), dtype=dtype, device=self.device, pin_memory=self._pinned
            )
        return self._blocks.empty(shape, dtype)

    def prepare(self, ahead_bytes: int) -> bool:
        """Touch a slice of memory for future segments. False if there is enough.

        Enough is `ahead_bytes`, or half the remaining room. Call it when nothing else needs the
        processor.
        """
        if self._arena is not None:
            return self._arena.prepare(ahead_bytes)
        if self._blocks is None:
            return False
        room = max(0, self.capacity_bytes - self.used_bytes)
        self._blocks.trim(min(ahead_bytes, room))
        return self._blocks.grow(min(ahead_bytes, room // 2))

    def __contains__(self, key: SegmentKey) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def keys(self) -> tuple[SegmentKey, ...]:
        """Keys, least recently used first."""
        return self._table.keys()

    def put(
        self,
        segment: Segment,
        *,
        demote: Callable[[Segment], None] = lambda _: None,
        left: Callable[[SegmentKey], None] = lambda _: None,
    ) -> bool:
        """Hold a segment. False if it is already held.

        Raises
        ------
        DonorError
            If the segment is tainted.
        CapacityError
            If it does not fit besides what is leased.
        """
        require_exact(segment)  # before anything is evicted for it
        return self.put_from(segment.key, segment.nbytes, lambda: segment, demote=demote, left=left)

    @fault_point(FaultPoint.TIER_WRITE)
    def put_from(
        self,
        key: SegmentKey,
        nbytes: int,
        load: Callable[[], Segment],
        *,
        demote: Callable[[Segment], None] = lambda _: None,
        left: Callable[[SegmentKey], None] = lambda _: None,
    ) -> bool:
        """Like :meth:`put`, but the segment is loaded only once there is room for it.

        `demote` receives each victim while it is still held; `left` is called once it is gone.
        """

        def leave(entry: Entry[Segment]) -> None:
            if entry.payload is not None:
                demote(entry.payload)

        def gone(victim: SegmentKey) -> None:
            self._counters.add("evictions")
            left(victim)

        def fill() -> Segment:
            self._keep_spare_within(nbytes)  # `load` may take that much of it
            segment = self._adopt(load())
            self._keep_spare_within(0)
            return segment

        while True:
            try:
                return self._table.admit(key, nbytes, fill, leave=leave, left=gone)
            except ArenaFullError:
                # There is room, but fragmented. Evicting one more makes a longer piece.
                if not self._table.evict(leave=leave, left=gone):
                    raise

    @fault_point(FaultPoint.TIER_READ)
    def acquire(
        self, key: SegmentKey, *, wait_s: float = 0.0, unchecked: bool = False
    ) -> Lease | None:
        """Lease a segment. One that fails its checksum is deleted, counted and missed.

        If another thread is loading it, wait up to `wait_s` seconds. An `unchecked` lease must be
        passed to :meth:`is_sound` before anything computed from it is released.
        """
        entry = self._table.lease(key, wait_s=wait_s)
        if entry is None or entry.payload is None:
            self._counters.add("misses")
            return None
        lease = Lease(
            segment=entry.payload,
            generation=entry.generation,
            tier=self.name,
            release=lambda: self._table.release(entry),
        )
        try:
            sound = unchecked or self.is_sound(lease)
        except BaseException:
            lease.release()
            raise
        if not sound:
            lease.release()
            self._counters.add("misses")
            return None
        self._counters.add("hits")
        return lease

    def is_sound(self, lease: Lease) -> bool:
        """Whether a leased segment has its checksum. A corrupt one is deleted and counted."""
        segment = lease.segment
        if not self._checked or kv_checksum(segment.kv) == segment.checksum:
            return True
        self._table.remove(segment.key, generation=lease.generation)
        self._counters.add("corrupt")
        return False

    def remove(self, key: SegmentKey) -> bool:
        """Drop a segment. Existing leases stay valid."""
        return self._table.remove(key)

    def close(self) -> None:
        """Unpin the arena, if there is one. Its segments must not be read afterwards."""
        if self._arena is not None:
            self._arena.close()

    def stats(self) -> TierStats:
        counters = self._counters
        return TierStats(
            name=self.name,
            used_bytes=self.used_bytes,
            capacity_bytes=self.capacity_bytes,
            segments=len(self._table),
            leased=self._table.leased(),
            hits=counters.hits,
            misses=counters.misses,
            evictions=counters.evictions,
            corrupt=counters.corrupt,
            errors=counters.errors,
            spare_bytes=self.spare_bytes,
        )

    def _keep_spare_within(self, reserved: int) -> None:
        """Trim spare memory to the free room minus `reserved`, to enforce the limit."""
        if self._blocks is not None:
            self._blocks.trim(max(0, self.capacity_bytes - self.used_bytes) + reserved)

    @fault_point(FaultPoint.ALLOCATION)
    def _adopt(self, segment: Segment) -> Segment:
        """The segment as this tier holds it: on its device, owning exactly its own bytes."""
        require_exact(segment)
        kv = segment.kv.detach()
        if kv.device != self.device or (self._pinned and not kv.is_pinned()):
            held = self.empty(kv.shape, kv.dtype)
            held.copy_(kv)
        elif kv.untyped_storage().nbytes() != kv.nbytes:
            held = kv.clone()  # a view would keep the tensor behind it alive, uncounted
        else:
            held = kv
        if not self._checked:
            return replace(segment, kv=held)
        checksum = kv_checksum(held)
        if segment.checksum not in (None, checksum):
            raise CorruptSegmentError(
                f"segment {segment.key.name[:16]} changed on its way to the {self.name} tier"
            )
        return replace(segment, kv=held, checksum=checksum)
