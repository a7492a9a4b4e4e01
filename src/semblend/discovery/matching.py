"""From fingerprints to verified runs. A hash only proposes; tokens decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import MAX_PROMPT_TOKENS, TokenArray
from semblend.discovery.fingerprint_table import FingerprintTable
from semblend.discovery.fingerprints import (
    GRAM_TOKENS,
    GUARANTEED_RUN_TOKENS,
    WINDOW_GRAMS,
    HashArray,
    IndexArray,
    fingerprints,
)
from semblend.discovery.token_arena import TokenArena, spread

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_REACH = WINDOW_GRAMS - 1
"""A run extends at most this many tokens beyond its outermost shared fingerprint. One more, and
another window of grams, and thus a fingerprint, would be shared.
"""


@dataclass(frozen=True, slots=True)
class ChunkRuns:
    """Verified identical runs, each target[start:end) = chunk[start + shift : end + shift)."""

    chunk: IndexArray
    shift: IndexArray
    start: IndexArray
    end: IndexArray
    hits: int

    def __len__(self) -> int:
        return int(self.chunk.size)

    def rows(self) -> list[tuple[int, int, int, int]]:
        """(chunk, shift, start, end) as Python integers, in target order."""
        order = np.lexsort((-self.end, self.start))
        columns = (self.chunk, self.shift, self.start, self.end)
        return list(zip(*(column[order].tolist() for column in columns), strict=True))


_NOTHING: IndexArray = np.empty(0, dtype=np.int64)
_NO_RUNS = ChunkRuns(_NOTHING, _NOTHING, _NOTHING, _NOTHING, hits=0)


def find_runs(
    tokens: TokenArray,
    *,
    seed: int,
    table: FingerprintTable,
    arena: TokenArena,
    allowed: Callable[[IndexArray], BoolArray],
    lengths: IndexArray,
    read_chunk: Callable[[int], TokenArray],
) -> ChunkRuns:
    """All maximal runs of at least 32 tokens that stored chunks share with `tokens`.

    Text that repeats itself matches at every multiple of its period. Where that makes more runs
    than `most_runs`, enough of them to cover the same tokens are returned, not all.

    Parameters
    ----------
    tokens
        Target, shape [n].
    allowed
        Mask of chunk numbers that may match: those of the caller's namespace.
    lengths
        Length of every chunk, by chunk number.
    read_chunk
        Reads a chunk's tokens. Called only if a run extends beyond its fingerprints' reach.
    """
    hashes, positions = _thinned(*fingerprints(tokens, seed), tokens.size)
    index, places = table.find(hashes)
    chunk, offset = arena.owners(places)
    keep = allowed(chunk)
    if not keep.any():
        return _NO_RUNS
    chunk, start, places = chunk[keep], positions[index[keep]], places[keep]
    shift = offset[keep] - start
    # Hits are in target order, and a stable sort keeps those of one line in order.
    order = np.argsort(_line(chunk, shift), kind="stable")
    lines = _Lines(
        chunk=chunk[order],
        shift=shift[order],
        start=start[order],
        place=places[order],
        length=lengths[chunk[order]],
    )
    runs, cut = _identical(tokens, lines, arena)
    if len(runs) > most_runs(tokens.size):
        return _covering(tokens, runs, read_chunk)
    return _extended(tokens, runs, cut, read_chunk) if cut.any() else runs


def _thinned(hashes: HashArray, positions: IndexArray, tokens: int) -> tuple[HashArray, IndexArray]:
    """At most one fingerprint of a value per window, where they stand too close.

    Ordinary text has one in nine tokens. Text with a period below a window ties in every window
    and has up to one a token, of few values; each would be looked up and compared.
    """
    if hashes.size <= tokens // 4:
        return hashes, positions
    order = np.argsort(hashes, kind="stable")
    value, window = hashes[order], positions[order] // WINDOW_GRAMS
    first = np.ones(order.size, dtype=bool)
    first[1:] = (value[1:] != value[:-1]) | (window[1:] != window[:-1])
    kept = np.sort(order[first])
    return hashes[kept], positions[kept]


def _line(chunk: IndexArray, shift: IndexArray) -> IndexArray:
    """One number per (chunk, shift). Shifts are smaller than the longest prompt."""
    line: IndexArray = chunk * (2 * MAX_PROMPT_TOKENS) + (shift + MAX_PROMPT_TOKENS)
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Hits sorted by line (chunk and shift), then by the start of their gram."""

    chunk: IndexArray
    shift: IndexArray
    start: IndexArray
    place: IndexArray
    length: IndexArray


def _identical(tokens: TokenArray, lines: _Lines, arena: TokenArena) -> tuple[ChunkRuns, BoolArray]:
    """Runs of at least 32 tokens in the regions around hits, compared token by token.

    Also returns a mask of those that may extend beyond their region. A region reaches _REACH tokens
    to either side of its hits' grams. Neighbouring hits on one line share a region, so every token
    is compared once.
    """
    start = lines.start
    first = np.ones(start.size, dtype=bool)
    first[1:] = np.diff(_line(lines.chunk, lines.shift)) != 0
    first[1:] |= np.diff(start) > _REACH + GRAM_TOKENS + _REACH
    last = np.append(first[1:], True)
    chunk, shift = lines.chunk[first], lines.shift[first]
    least = np.maximum(0, -shift)
    most = np.minimum(tokens.size, lines.length[first] - shift)
    low = np.maximum(start[first] - _REACH, least)
    high = np.minimum(start[last] + GRAM_TOKENS + _REACH, most)
    # Each hit stands for the tokens up to the next one. A token that never matches follows each
    # region, so that runs end with their region.
    before, after = np.zeros_like(start), np.empty_like(start)
    before[first] = start[first] - low
    after[:-1] = np.diff(start)
    after[last] = high + 1 - start[last]
    sizes = high + 1 - low
    same = tokens.take(spread(low, sizes), mode="clip") == arena.around(lines.place, before, after)
    ends = np.cumsum(sizes)
    same[ends - 1] = False

    edges = np.flatnonzero(np.diff(same, prepend=False))
    begin, end = edges[0::2], edges[1::2]
    long = end - begin >= GUARANTEED_RUN_TOKENS
    begin, end = begin[long], end[long]
    region = np.searchsorted(ends, begin, side="right")
    to_target = (low - ends + sizes)[region]
    low_of, high_of = begin + to_target, end + to_target
    cut = ((low_of == low[region]) & (low_of > least[region])) | (
        (high_of == high[region]) & (high_of < most[region])
    )
    grams = start + (ends - sizes - low)[np.cumsum(first) - 1]
    inside = np.searchsorted(begin, grams, side="right") - np.searchsorted(
        end, grams + GRAM_TOKENS, side="left"
    )
    runs = ChunkRuns(chunk[region], shift[region], low_of, high_of, hits=int(inside.sum()))
    return runs, cut


def _extended(
    tokens: TokenArray, runs: ChunkRuns, cut: BoolArray, read_chunk: Callable[[int], TokenArray]
) -> ChunkRuns:
    """The same runs, with those that were cut extended to their ends.

    Fingerprints of one run are at most 17 tokens apart, so much of a run is missing only if the
    table dropped fingerprints (boilerplate with too many places). Such a run may have been seen in
    several regions.
    """
    start, end = runs.start.copy(), runs.end.copy()
    kept = np.ones(start.size, dtype=bool)
    number, text = -1, tokens
    before, reach = (-1, 0), 0
    for i, line in enumerate(zip(runs.chunk.tolist(), runs.shift.tolist(), strict=True)):
        if line == before and start[i] < reach:
            kept[i] = False
            continue
        chunk, shift = line
        if cut[i]:
            if chunk != number:
                number, text = chunk, read_chunk(chunk)
            start[i] = _extend_left(tokens, text, int(start[i]), shift)
            end[i] = _extend_right(tokens, text, int(end[i]), shift)
        before, reach = line, int(end[i])
    return ChunkRuns(runs.chunk[kept], runs.shift[kept], start[kept], end[kept], hits=runs.hits)


def most_runs(tokens: int) -> int:
    """More runs than edited versions of a prompt leave; each costs Python time from here on."""
    return 256 + tokens // 64


def _covering(
    tokens: TokenArray, runs: ChunkRuns, read_chunk: Callable[[int], TokenArray]
) -> ChunkRuns:
    """Runs that together cover what all of them do, each to its ends, from left to right.

    The next run is the last that starts inside what is covered so far, because it reaches
    furthest; where none goes on, the first behind it.
    """
    order = np.argsort(runs.start, kind="stable")
    starts = runs.start[order]
    taken: list[tuple[int, int, int, int]] = []
    number, text = -1, tokens
    reach, before = -1, -1
    while len(taken) < most_runs(tokens.size):
        at = max(int(np.searchsorted(starts, reach, side="right")) - 1, before)
        if at <= before or runs.end[order[at]] <= reach:
            at += 1
        if at >= order.size:
            break
        before, run = at, order[at]
        if runs.end[run] <= reach:
            continue
        chunk, shift = int(runs.chunk[run]), int(runs.shift[run])
        if chunk != number:
            number, text = chunk, read_chunk(chunk)
        start = _extend_left(tokens, text, int(runs.start[run]), shift)
        reach = _extend_right(tokens, text, int(runs.end[run]), shift)
        taken.append((chunk, shift, start, reach))
    chunks, shifts, begins, ends = np.array(taken, dtype=np.int64).T
    return ChunkRuns(chunks, shifts, begins, ends, hits=runs.hits)


def _extend_right(tokens: TokenArray, text: TokenArray, at: int, shift: int) -> int:
    step = 1
    while True:
        size = min(step, tokens.size - at, text.size - at - shift)
        if size <= 0:
            return at
        same = tokens[at : at + size] == text[at + shift : at + shift + size]
        if not same.all():
            return at + int(np.argmin(same))
        at += size
        step = min(step * 8, 4096)


def _extend_left(tokens: TokenArray, text: TokenArray, at: int, shift: int) -> int:
    step = 1
    while True:
        size = min(step, at, at + shift)
        if size <= 0:
            return at
        same = tokens[at - size : at] == text[at + shift - size : at + shift]
        if not same.all():
            return at - int(np.argmin(same[::-1]))
        at -= size
        step = min(step * 8, 4096)
