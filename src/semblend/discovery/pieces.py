"""How a donor is made of chunks: what is shared and what must be stored."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from semblend.discovery.fingerprints import GUARANTEED_RUN_TOKENS
from semblend.discovery.matching import ChunkRuns

OVERLAP = GUARANTEED_RUN_TOKENS - 1
MIN_SHARED_TOKENS = 128
"""Shorter shared runs are stored again, because a reference costs about as much."""


@dataclass(frozen=True, slots=True)
class Piece:
    """donor[donor_start : donor_start + length) = chunk[chunk_start : chunk_start + length)."""

    donor_start: int
    chunk: int
    chunk_start: int
    length: int


def shared_pieces(runs: ChunkRuns) -> list[Piece]:
    """Ranges of a new donor that chunks already hold, left to right and disjoint."""
    pieces: list[Piece] = []
    position = 0
    for chunk, shift, start, end in runs.rows():
        start = max(start, position)
        if end - start >= MIN_SHARED_TOKENS:
            pieces.append(Piece(start, chunk, start + shift, end - start))
            position = end
    return pieces


def unshared_ranges(shared: list[Piece], size: int) -> list[tuple[int, int]]:
    """Ranges to store: what `shared` omits, extended by 31 tokens on each shared side.

    Two adjacent shared pieces still get a seam of 62 tokens, for the windows across it.
    """
    ranges: list[tuple[int, int]] = []
    position = 0
    for piece in shared:
        if piece.donor_start > 0:
            low = max(0, position - OVERLAP) if position else 0
            ranges.append((low, min(size, piece.donor_start + OVERLAP)))
        position = piece.donor_start + piece.length
    if position < size:
        ranges.append((max(0, position - OVERLAP) if position else 0, size))
    # Without sharing, this is one range of at least 32 tokens. A range is never shorter than an
    # overlap plus one.
    return ranges


def without(ranges: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """`ranges` minus [low, high)."""
    left = ((start, min(end, low)) for start, end in ranges)
    right = ((max(start, high), end) for start, end in ranges)
    return [(start, end) for start, end in itertools.chain(left, right) if start < end]
