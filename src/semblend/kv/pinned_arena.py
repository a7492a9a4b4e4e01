"""Pinned host memory in a few large slabs that we divide into segments.

Only copies to and from pinned memory are fast. An allocator that pins each segment rounds it up to
a power of two and stalls the device's other work meanwhile. Here slabs are pinned as needed, within
an exact byte limit. Addresses are assigned first fit, and a segment's memory is returned when the
last tensor over it is gone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import weakref
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from semblend.core.errors import CapacityError
from semblend.kv.in_flight import IN_FLIGHT

_ALIGNMENT = 512
"""Segments start at multiples of this many bytes."""
_SLAB_BYTES = 256 << 20
"""Approximate size of a slab. Pinning one takes milliseconds, during which the device waits."""


class ArenaFullError(CapacityError):
    """No contiguous free range is long enough, though the total may be."""


@dataclass(slots=True, eq=False)
class _Slab:
    memory: mmap.mmap
    size: int
    free: list[tuple[int, int]] = field(default_factory=list)
    """Ranges (start, end), ascending; neighbours are merged."""

    def take(self, nbytes: int) -> int | None:
        """Allocate `nbytes` and return the start, or None."""
        for number, (start, end) in enumerate(self.free):
            if end - start >= nbytes:
                if end - start == nbytes:
                    del self.free[number]
                else:
                    self.free[number] = (start + nbytes, end)
                return start
        return None

    def give_back(self, start: int, nbytes: int) -> None:
        insort(self.free, (start, start + nbytes))
        joined: list[tuple[int, int]] = []
        for run in self.free:
            if joined and joined[-1][1] == run[0]:
                joined[-1] = (joined[-1][0], run[1])
            else:
                joined.append(run)
        self.free = joined


class PinnedArena:
    """Memory for segments within `capacity_bytes`. Thread-safe."""

    def __init__(
        self,
        capacity_bytes: int,
        *,
        segment_bytes: int,
        slab_bytes: int = _SLAB_BYTES,
        pin: Callable[[int, int], None] | None = None,
        unpin: Callable[[int], None] | None = None,
    ) -> None:
        """Start empty.

        Parameters
        ----------
        segment_bytes
            Size of the usual segment. Slabs hold a whole number of them.
        slab_bytes
            Approximate size of a slab.
        pin, unpin
            Pin (address, bytes) and unpin an address; CUDA's own by default.
        """
        if capacity_bytes < 1 or segment_bytes < 1:
            raise CapacityError(
                f"arena: expected at least one byte, got {capacity_bytes} in segments of "
                f"{segment_bytes}"
            )
        self.capacity_bytes = capacity_bytes
        usual = _aligned(segment_bytes)
        self._slab_bytes = min(capacity_bytes, max(1, slab_bytes // usual) * usual)
        self._pin = _register if pin is None else pin
        self._unpin = _unregister if unpin is None else unpin
        self._slabs: list[_Slab] = []
        # Tensors die wherever their last reference goes, perhaps inside this class. Their memory is
        # queued here without the lock, and collected by the next holder of it.
        self._returned: deque[tuple[_Slab, int, int]] = deque()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes pinned so far, never above the limit."""
        with self._lock:
            return sum(slab.size for slab in self._slabs)

    @property
    def free_bytes(self) -> int:
        """Pinned bytes that no segment uses."""
        with self._lock:
            self._collect()
            return sum(end - start for slab in self._slabs for start, end in slab.free)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor that owns exactly its bytes of a slab.

        Raises
        ------
        ArenaFullError
            If no free range is long enough and the limit is reached.
        CapacityError
            If memory cannot be allocated or pinned.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        IN_FLIGHT.sweep()
        slab, start = self._take(_aligned(nbytes))
        array = np.frombuffer(slab.memory, dtype=np.uint8, count=nbytes, offset=start)
        done = weakref.finalize(array, self._returned.append, (slab, start, _aligned(nbytes)))
        done.atexit = False
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def prepare(self, ahead_bytes: int) -> bool:
        """Pin one more slab if fewer than `ahead_bytes` are free. False if there are enough."""
        if self.free_bytes >= ahead_bytes:
            return False
        with self._lock:
            return self._grow(0) is not None

    def close(self) -> None:
        """Unpin everything. Neither the arena nor its memory may be used afterwards."""
        with self._lock:
            self.capacity_bytes = 0
            for slab in self._slabs:
                self._unpin(_address(slab.memory))
            self._slabs.clear()

    def _take(self, nbytes: int) -> tuple[_Slab, int]:
        with self._lock:
            self._collect()
            for slab in self._slabs:
                start = slab.take(nbytes)
                if start is not None:
                    return slab, start
            grown = self._grow(nbytes)
            start = None if grown is None else grown.take(nbytes)
            if grown is None or start is None:
                raise ArenaFullError(f"arena: no free range of {nbytes} bytes")
            return grown, start

    def _grow(self, nbytes: int) -> _Slab | None:
        """Add a slab of at least `nbytes`; None if the limit leaves no room for it."""
        room = self.capacity_bytes - sum(slab.size for slab in self._slabs)
        size = min(room, max(self._slab_bytes, nbytes)) // _ALIGNMENT * _ALIGNMENT
        if size < max(nbytes, 1):
            return None
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise CapacityError(f"arena: cannot allocate {size} bytes: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        # Touch first: pinning resident pages holds up the device less.
        np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
        self._pin(_address(memory), size)
        slab = _Slab(memory=memory, size=size, free=[(0, size)])
        self._slabs.append(slab)
        return slab

    def _collect(self) -> None:
        while self._returned:
            slab, start, nbytes = self._returned.popleft()
            slab.give_back(start, nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def _register(address: int, nbytes: int) -> None:
    cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(cuda.cudaHostRegister(address, nbytes, 0))
    if status:
        raise CapacityError(f"arena: cannot pin {nbytes} bytes: CUDA error {status}")


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
