"""Recycled host memory for captured K/V, touched in advance.

The first touch of a page costs more than copying K/V into it, and would slow down a running
request. A block's pages are touched while idle, or were touched by an evicted segment. Spare bytes
are counted by pages touched, because address space costs nothing.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.errors import CapacityError

SLICE_BYTES = 1 << 20
"""Touched at once. Takes well under a millisecond, which a request may have to wait."""

_PAGE = mmap.PAGESIZE


@dataclass(slots=True, eq=False)
class _Block:
    memory: mmap.mmap
    touched: int
    """Bytes from the start that are resident, in whole pages."""


class HostBlocks:
    """Spare memory in blocks of one size, each for one segment of at most that size.

    A block is returned only when the last tensor over it is gone, so a reader that outlives its
    lease still sees the old contents. Thread-safe.
    """

    def __init__(self, block_bytes: int) -> None:
        """Start empty. `block_bytes` is the size of the usual segment."""
        if block_bytes < 1:
            raise CapacityError(f"block_bytes: expected at least 1, got {block_bytes}")
        self.block_bytes = _whole_pages(block_bytes)
        self._spare: list[_Block] = []
        # Tensors die wherever their last reference goes, perhaps inside this class. Their memory is
        # queued here without the lock, and collected by the next holder of it.
        self._returned: deque[_Block] = deque()
        self._lock = threading.Lock()

    @property
    def spare_bytes(self) -> int:
        """Resident bytes that no segment uses."""
        with self._lock:
            return self._collect()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor in a spare block, or a new one if there is none.

        Anything larger than a block, or without address space, is allocated as usual.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= self.block_bytes:
            return torch.empty(tuple(shape), dtype=dtype)
        block = self._take(nbytes)
        if block is None:
            return torch.empty(tuple(shape), dtype=dtype)
        array = np.frombuffer(block.memory, dtype=np.uint8, count=nbytes)
        weakref.finalize(array, self._returned.append, block).atexit = False
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def grow(self, limit: int) -> bool:
        """Touch one more slice of spare memory. False if that would exceed `limit`."""
        with self._lock:
            size = min(SLICE_BYTES, self.block_bytes)
            if self._collect() + size > limit:
                return False
            block = next((b for b in self._spare if b.touched < self.block_bytes), None)
            if block is None:
                block = self._new()
                if block is None:
                    return False
                self._spare.append(block)
            end = min(self.block_bytes, block.touched + size)
            np.frombuffer(block.memory, dtype=np.uint8)[block.touched : end : _PAGE] = 0
            block.touched = end
            return True

    def trim(self, limit: int) -> None:
        """Return spare memory to the system until at most `limit` bytes are left."""
        with self._lock:
            spare = self._collect()
            while spare > limit:
                spare -= self._spare.pop().touched

    def _take(self, nbytes: int) -> _Block | None:
        """A block with about as many touched pages as `nbytes` needs, and no more."""
        with self._lock:
            self._collect()
            if not self._spare:
                block = self._new()
            else:
                block = min(self._spare, key=lambda spare: abs(spare.touched - nbytes))
                self._spare.remove(block)
        if block is None:
            return None
        needed = _whole_pages(nbytes)
        if block.touched > needed:
            # A short segment must not keep a long one's memory.
            block.memory.madvise(mmap.MADV_DONTNEED, needed, block.touched - needed)
        block.touched = needed
        return block

    def _new(self) -> _Block | None:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            memory = mmap.mmap(-1, self.block_bytes, flags=flags)
        except OSError:
            return None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A huge page would take two mebibytes for the first byte, uncounted.
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        return _Block(memory=memory, touched=0)

    def _collect(self) -> int:
        """Collect returned blocks. Returns the spare bytes."""
        while self._returned:
            self._spare.append(self._returned.popleft())
        return sum(block.touched for block in self._spare)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
