"""Embeds long prompts in full, as overlapping windows of the embedder's size.

A window is a run of the embedder's own units (words), so the embedder never truncates it. Windows
are evenly spaced and of one size, and every unit is in at least one of them.

A prompt that would need more than `max_windows` windows gets `max_windows` wider *regions* instead.
A region is sampled in evenly spaced pieces that always include its first and last units. So no
stretch longer than region/pieces goes unread, and both ends of the prompt are always read. Text is
never dropped beyond some length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.errors import SettingsError, VectorError
from semblend.discovery.embedders.base import Embedder, Offsets, Vectors, normalised

DEFAULT_OVERLAP = 0.125
"""Share of a window that the next one repeats, so that no sentence is only seen in halves."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can carry half a character, which no tokenizer accepts."""
PIECES = 8
"""Pieces per region if the prompt is too long for full windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A half-open run of units [start, end) and the parts of it that are read.

    `pieces` are ordered, disjoint runs inside it. A single piece equal to the window means that
    everything is read.
    """

    start: int
    end: int
    pieces: tuple[tuple[int, int], ...]

    @property
    def is_whole(self) -> bool:
        """Whether every unit of the window is read."""
        return self.pieces == ((self.start, self.end),)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptVectors:
    """What an embedder saw of one prompt, window by window."""

    windows: Vectors
    """Shape [n, dimension]; n is 0 for a prompt without content."""
    bounds: Offsets
    """The [start, end) of each window in the prompt's characters (or tokens), shape [n, 2]."""

    @property
    def pooled(self) -> Vectors:
        """The normalised mean of the windows, shape [dimension]: the whole prompt in one vector."""
        mean = self.windows.sum(axis=0, keepdims=True, dtype=np.float64)
        pooled: Vectors = normalised(mean)[0]
        return pooled

    def condensed(self, limit: int) -> PromptVectors:
        """Average neighbours until there are at most `limit` windows. None is left out."""
        count = len(self.windows)
        if limit < 1:
            raise SettingsError(f"limit: expected at least 1, got {limit}")
        if count <= limit:
            return self
        edges = np.linspace(0, count, limit + 1).round().astype(np.int64)
        sums = np.add.reduceat(self.windows, edges[:-1], axis=0)
        bounds = np.stack([self.bounds[edges[:-1], 0], self.bounds[edges[1:] - 1, 1]], axis=1)
        return PromptVectors(windows=normalised(sums), bounds=bounds)


def cut_windows(
    costs: Offsets, *, size: int, overlap: float = DEFAULT_OVERLAP, max_windows: int
) -> tuple[Window, ...]:
    """Cut units with these costs (shape [n]) into windows of at most `size` tokens.

    No window reads more than `size` tokens (except a single unit larger than that), every unit is
    in a window, and there are at most `max_windows`.

    Raises
    ------
    SettingsError
        If `size`, `overlap` or `max_windows` is out of range.
    """
    if size < 1:
        raise SettingsError(f"size: expected at least 1 token, got {size}")
    if not 0.0 <= overlap < 1.0:
        raise SettingsError(f"overlap: expected a share in [0, 1), got {overlap}")
    if max_windows < 1:
        raise SettingsError(f"max_windows: expected at least 1, got {max_windows}")
    if len(costs) == 0:
        return ()
    before = np.concatenate([[0], np.cumsum(costs, dtype=np.int64)])
    windows = _full_windows(before, size, overlap, max_windows)
    return windows if windows is not None else _sampled_regions(before, size, overlap, max_windows)


def _full_windows(
    before: Offsets, size: int, overlap: float, max_windows: int
) -> tuple[Window, ...] | None:
    """Windows that read everything, or None if there would be too many."""
    units = len(before) - 1
    windows: list[Window] = []
    for start_cost in _even_starts(int(before[-1]), size, overlap):
        start = int(np.searchsorted(before, start_cost, side="right")) - 1
        # Rounding to whole units must not leave a gap after the previous window.
        start = min(start, windows[-1].end if windows else 0)
        end = _reach(before, start, size)
        if len(windows) == max_windows:
            return None
        if not windows or end > windows[-1].end:
            windows.append(Window(start=start, end=end, pieces=((start, end),)))
    while windows[-1].end < units:
        if len(windows) == max_windows:
            return None
        start = windows[-1].end
        end = _reach(before, start, size)
        windows.append(Window(start=start, end=end, pieces=((start, end),)))
    return tuple(windows)


def _even_starts(total: int, size: int, overlap: float) -> list[int]:
    """Start costs of evenly spaced windows of `size` over `total`, with at least this overlap."""
    if total <= size:
        return [0]
    step = max(1, int(size * (1.0 - overlap)))
    count = -(-(total - size) // step) + 1
    return [int(start) for start in np.linspace(0, total - size, count)]


def _reach(before: Offsets, start: int, size: int) -> int:
    """The furthest end for which units [start, end) cost at most `size`; at least one unit."""
    end = int(np.searchsorted(before, before[start] + size, side="right")) - 1
    return max(end, start + 1)


def _sampled_regions(
    before: Offsets, size: int, overlap: float, max_windows: int
) -> tuple[Window, ...]:
    """`max_windows` regions that cover everything, each sampled in pieces."""
    total = int(before[-1])
    width = total / (1 + (max_windows - 1) * (1.0 - overlap))
    starts = np.linspace(0, total - width, max_windows)
    firsts = np.searchsorted(before, starts, side="right") - 1
    lasts = np.searchsorted(before, np.minimum(starts + width, total), side="left")
    lasts[-1] = len(before) - 1
    return tuple(
        _sample(before, int(first), max(int(last), int(first) + 1), size)
        for first, last in zip(firsts, lasts, strict=True)
    )


def _sample(before: Offsets, start: int, end: int, size: int) -> Window:
    """Sample region [start, end) in evenly spaced pieces with a total cost of at most `size`."""
    if before[end] - before[start] <= size:
        return Window(start=start, end=end, pieces=((start, end),))
    count = min(PIECES, size)
    share = size // count
    # Fit the last piece from the right, so that the region's last unit is read.
    tail = min(int(np.searchsorted(before, before[end] - share, side="left")), end - 1)
    pieces: list[tuple[int, int]] = []
    position, left = start, size - int(before[end] - before[tail])
    for anchor in np.linspace(before[start], before[end] - share, count)[:-1]:
        first = max(int(np.searchsorted(before, anchor, side="right")) - 1, position)
        last = min(_reach(before, first, share), tail)
        cost = int(before[last] - before[first])
        if first < last and cost <= left:
            pieces.append((first, last))
            position, left = last, left - cost
    return Window(start=start, end=end, pieces=(*pieces, (tail, end)))


def embed_text(
    embedder: Embedder,
    text: str,
    *,
    overlap: float = DEFAULT_OVERLAP,
    max_windows: int | None = None,
) -> PromptVectors:
    """Vectors of all of `text`. `max_windows` defaults to the embedder's own."""
    if embedder.dimension == 0:
        return _nothing(embedder)
    text = _LONE_SURROGATE.sub("\ufffd", text)
    units = embedder.units(text)
    windows = cut_windows(
        units.costs,
        size=embedder.window_tokens,
        overlap=overlap,
        max_windows=embedder.max_windows if max_windows is None else max_windows,
    )
    texts = [
        "\n".join(text[units.starts[first] : units.ends[last - 1]] for first, last in window.pieces)
        for window in windows
    ]
    bounds = [(units.starts[window.start], units.ends[window.end - 1]) for window in windows]
    return _prompt_vectors(embedder, embedder.embed(texts), bounds)


def similarity(target: Vectors, donor: Vectors) -> float:
    """How much of the target is said somewhere in the donor, in [0, 1].

    The mean over the target's windows of the best cosine with any window of the donor. It is 1 if
    the donor contains all of the target in any order. It is not symmetric: a short target inside a
    long donor scores high, the reverse low. Shapes are [m, dimension] and [n, dimension]; 0 if
    either is empty.
    """
    if target.ndim != 2 or donor.ndim != 2 or target.shape[1] != donor.shape[1]:
        raise VectorError(
            f"similarity: expected [m, d] and [n, d], got {target.shape} and {donor.shape}"
        )
    if target.size == 0 or donor.size == 0:
        return 0.0
    best = (target @ donor.T).max(axis=1)
    return float(np.clip(best.mean(), 0.0, 1.0))


def _prompt_vectors(
    embedder: Embedder, vectors: Vectors, bounds: list[tuple[int, int]]
) -> PromptVectors:
    edges: npt.NDArray[np.int64] = np.array(bounds, dtype=np.int64).reshape(-1, 2)
    if not bounds:
        return _nothing(embedder)
    return PromptVectors(windows=vectors, bounds=edges)


def _nothing(embedder: Embedder) -> PromptVectors:
    return PromptVectors(
        windows=np.empty((0, embedder.dimension), dtype=np.float32),
        bounds=np.empty((0, 2), dtype=np.int64),
    )
