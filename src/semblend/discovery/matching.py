"""From fingerprints to verified runs: a hash proposes, tokens decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import TokenArray
from semblend.discovery.fingerprint_table import FingerprintTable
from semblend.discovery.fingerprints import (
    GRAM_TOKENS,
    GUARANTEED_RUN_TOKENS,
    WINDOW_GRAMS,
    IndexArray,
    fingerprints,
)
from semblend.discovery.token_arena import TokenArena

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_REACH = WINDOW_GRAMS - 1
"""Beyond the outermost shared fingerprint a run goes on for at most this many tokens:
one more and another window of grams would be shared, and with it a fingerprint."""


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
    min_run: int = GUARANTEED_RUN_TOKENS,
) -> ChunkRuns:
    """All maximal runs of at least `min_run` tokens that stored chunks share with `tokens`.

    Parameters
    ----------
    tokens
        Target, shape [n].
    allowed
        Mask of chunk numbers that may match: those of the caller's namespace.
    lengths
        Length of every chunk, by chunk number.
    read_chunk
        Tokens of a chunk; asked only where a run outgrows the fingerprints' reach.
    """
    hashes, positions = fingerprints(tokens, seed)
    index, places = table.find(hashes)
    if not index.size:
        return _NO_RUNS
    chunk, offset = arena.owners(places)
    keep = allowed(chunk)
    index, places, chunk, offset = index[keep], places[keep], chunk[keep], offset[keep]
    start = positions[index]
    low, high, cut = _extents(tokens, start, places, offset, lengths[chunk], arena)
    keep = high - low >= min(min_run, GUARANTEED_RUN_TOKENS)
    if not keep.any():
        return _NO_RUNS
    chunk, shift = chunk[keep], (offset - start)[keep]
    chunk, shift, low, high, cut = _join(chunk, shift, low[keep], high[keep], cut[keep])
    for i in np.flatnonzero(cut):
        text, move = read_chunk(int(chunk[i])), int(shift[i])
        low[i] = _extend_left(tokens, text, int(low[i]), move)
        high[i] = _extend_right(tokens, text, int(high[i]), move)
    long = high - low >= min_run
    return ChunkRuns(chunk[long], shift[long], low[long], high[long], hits=int(keep.sum()))


def _extents(
    tokens: TokenArray,
    start: IndexArray,
    places: IndexArray,
    offset: IndexArray,
    length: IndexArray,
    arena: TokenArena,
) -> tuple[IndexArray, IndexArray, BoolArray]:
    """The identical run around each hit, looked at _REACH tokens to either side of its gram.

    Returns (low, high, cut): `cut` has a column for the left and one for the right
    side, true where the run may go on beyond what was looked at. A hit whose gram is
    not really identical (a hash collision) gets an empty run.
    """
    width = _REACH + GRAM_TOKENS + _REACH
    there = arena.windows(places, _REACH, GRAM_TOKENS + _REACH)
    columns = np.arange(-_REACH, GRAM_TOKENS + _REACH)
    at = start[:, None] + columns
    from_end = length - offset
    valid = (
        (at >= 0)
        & (at < tokens.size)
        & (columns >= -offset[:, None])
        & (columns < from_end[:, None])
    )
    same = valid & (tokens.take(at, mode="clip") == there)
    gram = same[:, _REACH : _REACH + GRAM_TOKENS].all(axis=1)
    left = same[:, :_REACH][:, ::-1]
    right = same[:, _REACH + GRAM_TOKENS : width]
    cut = np.stack([left.all(axis=1), right.all(axis=1)], axis=1)
    low = start - np.where(cut[:, 0], _REACH, np.argmin(left, axis=1))
    high = start + GRAM_TOKENS + np.where(cut[:, 1], _REACH, np.argmin(right, axis=1))
    return low, np.where(gram, high, low), cut


def _join(
    chunk: IndexArray, shift: IndexArray, low: IndexArray, high: IndexArray, cut: BoolArray
) -> tuple[IndexArray, IndexArray, IndexArray, IndexArray, BoolArray]:
    """Merge overlapping or touching pieces on the same (chunk, shift) into runs.

    Neighbouring fingerprints of one run are at most 17 tokens apart and each piece
    reaches 16 past its gram, so the pieces of one run touch, and only a fingerprint
    the table did not keep (boilerplate with too many places) leaves a run `cut`.
    """
    order = np.lexsort((high, low, shift, chunk))
    chunk, shift, low, high = chunk[order], shift[order], low[order], high[order]
    cut = cut[order]
    first = np.ones(low.size, dtype=bool)
    first[1:] = (chunk[1:] != chunk[:-1]) | (shift[1:] != shift[:-1]) | (low[1:] > high[:-1])
    # Pieces on one line end in the order they start, so the last one ends the run.
    last = np.append(first[1:], True)
    still_cut = cut[first, 0] | cut[last, 1]
    return chunk[first], shift[first], low[first], high[last], still_cut


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
