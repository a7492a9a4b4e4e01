"""Ownership of the pool's pages: allocation, sharing and leak detection."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.errors import CapacityError
from semblend.core.faults import FaultPoint, fault_point

PageIds = npt.NDArray[np.int32]


class PageAllocator:
    """A page is free exactly when it has no references.

    Pages are allocated as one contiguous run if possible, because attention reads a run without
    copying. The best-fitting run is taken so that long runs survive.
    """

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise CapacityError(f"page pool: expected at least one page, got {pages}")
        self._references = np.zeros(pages, dtype=np.int32)
        self._free = pages
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Number of pages."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self._free

    @fault_point(FaultPoint.POOL)
    def allocate(self, count: int) -> PageIds:
        """Take `count` free pages with one reference each; shape [count], in position order.

        Raises
        ------
        CapacityError
            If fewer are free. Nothing is taken then.
        """
        with self._lock:
            if count > self._free:
                raise CapacityError(f"page pool: {count} pages requested, {self._free} free")
            pages = self._pick(count)
            self._references[pages] = 1
            self._free -= count
            return pages

    def retain(self, pages: PageIds) -> None:
        """Add one reference to each of these pages, which must already be held."""
        with self._lock:
            if pages.size and int(self._references[pages].min()) < 1:
                raise CapacityError("page pool: a free page cannot be retained")
            self._references[pages] += 1

    def release(self, pages: PageIds) -> None:
        """Drop one reference to each of these pages."""
        with self._lock:
            if pages.size and int(self._references[pages].min()) < 1:
                raise CapacityError("page pool: a page was released more often than it was taken")
            self._references[pages] -= 1
            self._free += int(np.count_nonzero(self._references[pages] == 0))

    def references(self, page: int) -> int:
        """Number of references to this page."""
        return int(self._references[page])

    def _pick(self, count: int) -> PageIds:
        if count == 0:
            return np.empty(0, dtype=np.int32)
        padded = np.concatenate(([0], (self._references == 0).view(np.int8), [0]))
        edges = np.flatnonzero(np.diff(padded))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        fitting = np.flatnonzero(lengths >= count)
        if fitting.size:
            start = int(starts[fitting[np.argmin(lengths[fitting])]])
            return np.arange(start, start + count, dtype=np.int32)
        # No run is long enough: use as few pieces as possible, longest first.
        pieces: list[PageIds] = []
        for index in np.argsort(-lengths, kind="stable"):
            taken = min(count, int(lengths[index]))
            pieces.append(np.arange(starts[index], starts[index] + taken, dtype=np.int32))
            count -= taken
            if count == 0:
                break
        return np.concatenate(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Where one request's tokens are: position p is in `pages[p // page_size]`."""

    pages: PageIds
    page_size: int

    @property
    def capacity_tokens(self) -> int:
        """Number of positions this table has room for."""
        return len(self.pages) * self.page_size

    def slots(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Flat pool slots of positions [start, end), shape [end - start]."""
        # Work page by page: dividing every position takes longer than everything else.
        size, first = self.page_size, start // self.page_size
        pages = self.pages[first : max(first, -(-end // size))].astype(np.int64)
        slots = (pages[:, None] * size + np.arange(size)).reshape(-1)
        return slots[start - first * size : end - first * size]

    def slots_of(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Flat pool slots of some positions."""
        return self.pages[positions // self.page_size].astype(np.int64) * self.page_size + (
            positions % self.page_size
        )

    def runs(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Positions [start, end) as contiguous (first slot, length) runs."""
        if start >= end:
            return ()
        size = self.page_size
        first, last = start // size, (end - 1) // size
        pages = self.pages[first : last + 1]
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        runs: list[tuple[int, int]] = []
        for low, high in zip((0, *breaks.tolist()), (*breaks.tolist(), len(pages)), strict=True):
            begin = max(start, (first + low) * size)
            stop = min(end, (first + high) * size)
            slot = int(pages[low]) * size + begin - (first + low) * size
            runs.append((slot, stop - begin))
        return tuple(runs)
