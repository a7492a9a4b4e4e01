"""Pinned host memory in few large slabs, cut into segments by us.

Copies to and from a device are fast from pinned memory only, and an allocator that pins each
segment rounds it up to a power of two and stops the device's other work meanwhile. Here
slabs are pinned, as many as are used, within a cap that is held to the byte. Addresses are
handed out first fit; a segment's memory comes back when the last tensor over it is gone.
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
"""Bytes a segment begins at a multiple of."""
_SLAB_BYTES = 256 << 20
"""About so much is pinned at once: it takes milliseconds, and the device waits."""


class ArenaFullError(CapacityError):
    """No free run of bytes is long enough, though there may be enough of them."""


@dataclass(slots=True, eq=False)
class _Slab:
    memory: mmap.mmap
    size: int
    free: list[tuple[int, int]] = field(default_factory=list)
    """Runs (start, end), ascending; neighbours are joined."""

    def take(self, nbytes: int) -> int | None:
        """The start of a run of `nbytes`, no longer free."""
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
        """Hold nothing yet.

        Parameters
        ----------
        segment_bytes
            Size of the usual segment: slabs hold a whole number of them.
        slab_bytes
            About so much is pinned at once.
        pin, unpin
            What pins (address, bytes) and lets go of an address; CUDA's own by default.
        """
        if capacity_bytes < 1 or segment_bytes < 1:
            raise CapacityError(
                f"arena: at least one byte expected, got {capacity_bytes} in segments of "
                f"{segment_bytes}"
            )
        self.capacity_bytes = capacity_bytes
        usual = _aligned(segment_bytes)
        self._slab_bytes = min(capacity_bytes, max(1, slab_bytes // usual) * usual)
        self._pin = _register if pin is None else pin
        self._unpin = _unregister if unpin is None else unpin
        self._slabs: list[_Slab] = []
        # Tensors die wherever the last reference goes, perhaps inside this class: their memory
        # is put down here without the lock, and taken up by the next who holds it.
        self._returned: deque[tuple[_Slab, int, int]] = deque()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes pinned so far; never above the cap."""
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
            If no run of free bytes is long enough and the cap is reached.
        CapacityError
            If memory cannot be had or pinned.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        IN_FLIGHT.sweep()
        slab, start = self._take(_aligned(nbytes))
        array = np.frombuffer(slab.memory, dtype=np.uint8, count=nbytes, offset=start)
        done = weakref.finalize(array, self._returned.append, (slab, start, _aligned(nbytes)))
        done.atexit = False
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def prepare(self, ahead_bytes: int) -> bool:
        """Pin one more slab if fewer than `ahead_bytes` are free; False if nothing was to do."""
        if self.free_bytes >= ahead_bytes:
            return False
        with self._lock:
            return self._grow(0) is not None

    def close(self) -> None:
        """Unpin everything. Nobody may use the arena, or memory of it, afterwards."""
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
                raise ArenaFullError(f"arena: no run of {nbytes} bytes is free")
            return grown, start

    def _grow(self, nbytes: int) -> _Slab | None:
        """One more slab, of at least `nbytes`; None if the cap leaves no room for it."""
        room = self.capacity_bytes - sum(slab.size for slab in self._slabs)
        size = min(room, max(self._slab_bytes, nbytes)) // _ALIGNMENT * _ALIGNMENT
        if size < max(nbytes, 1):
            return None
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise CapacityError(f"arena: no {size} bytes of memory: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        # Touched first: pinning pages that are there does not hold the device up for long.
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
        raise CapacityError(f"arena: {nbytes} bytes could not be pinned: CUDA error {status}")


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
