"""Divides a pass into attention tiles, on the host.

A GPU does not see sequences. Every row of a pass has a request and a position, and sees its
request's keys up to that position. Nothing else matters. So rows of one request are packed into
*tiles* of fixed size, whichever holes and runs they come from, and one launch does all tiles of a
pass. A tile reads the keys up to its last row's position once for all its rows and query heads.

Few tiles would leave most of the device idle, so long key ranges are split into *items* whose
partial results are merged by their log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]

ITEM_FIELDS = 8
"""Fields of an item: first row, rows, base, first key, end of keys, end of keys that every row
sees, number of its partial result (-1: the only one, writes the output), unused.
"""
ITEMS_EACH = 3
"""Items per processor, enough to even out their lengths."""
MERGE_FIELDS = 4
"""Fields of a tile with several items: first row, rows, number of its first partial result, count.
"""

_ROW, _ROWS, _BASE, _FIRST_POSITION, _LAST_POSITION = range(5)
"""Fields of a tile: first row, rows, base, and the positions of its first and last row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """How attention is divided. Beyond rounding, results do not depend on it."""

    rows: int
    """(token, query head of one K/V head) pairs per tile; a power of two."""
    keys: int
    """Keys read at a time; a power of two."""
    warps: int
    stages: int

    def tokens(self, groups: int) -> int:
        """Tokens per tile if `groups` query heads share a K/V head."""
        return max(1, self.rows // groups)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRun:
    """Rows [row, row + len(positions)) of a pass, all of one request, in position order."""

    row: int
    positions: LongArray
    base: int
    """Where the request's keys start: a slot, or an offset into the pass's page numbers."""
    breaks: LongArray
    """Offsets in `positions` at which a hole starts, including 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TilePlan:
    """One launch over tiles of one shape, and the merge of those that were split."""

    shape: TileShape
    items: IntArray
    """[items, ITEM_FIELDS], those with the most keys first."""
    merges: IntArray
    """[split tiles, MERGE_FIELDS]"""
    parts: int
    """Number of partial results."""


def plan_tiles(
    runs: Sequence[RowRun],
    shape: TileShape,
    *,
    groups: int,
    kv_heads: int,
    processors: int,
    splits: int | None = None,
    items_each: int = ITEMS_EACH,
) -> TilePlan:
    """Divide `runs` into items that keep `processors` processors busy.

    Parameters
    ----------
    groups
        Query heads that share a K/V head.
    splits
        Items per tile, for launches whose size must not change; None chooses.
    """
    tokens = shape.tokens(groups)
    tiles = np.concatenate([_tiles(run, tokens) for run in runs], axis=1)
    keys = tiles[_LAST_POSITION] + 1
    if splits is None:
        # Below 512 keys, starting and merging an item costs more than computing it.
        wanted = max(512.0, float(keys.sum()) * kv_heads / (items_each * processors))
        counts = np.maximum(1, np.rint(keys / wanted).astype(np.int64))
    else:
        counts = np.full(len(keys), splits, dtype=np.int64)
    return _split(tiles, keys, counts, shape)


def _tiles(run: RowRun, tokens: int) -> LongArray:
    """Tiles of one request, [fields of a tile, tiles]."""
    starts, ends = _cheapest_cuts(run, tokens)
    tiles = np.empty((_LAST_POSITION + 1, len(starts)), dtype=np.int64)
    tiles[_ROW] = run.row + starts
    tiles[_ROWS] = ends - starts
    tiles[_BASE] = run.base
    tiles[_FIRST_POSITION] = run.positions[starts]
    tiles[_LAST_POSITION] = run.positions[ends - 1]
    return tiles


def _cheapest_cuts(run: RowRun, tokens: int) -> tuple[LongArray, LongArray]:
    """Where a request's tiles start and end.

    Filling tiles across holes needs fewer of them but makes a hole's last rows wait for the next
    hole's keys. Which is cheaper depends on how far apart the holes are.
    """
    size = len(run.positions)
    together = _starts_and_ends(np.arange(0, size, tokens), size)
    if len(run.breaks) == 1:
        return together
    hole_starts, hole_ends = _starts_and_ends(run.breaks, size)
    counts = -(-(hole_ends - hole_starts) // tokens)
    before = counts.cumsum() - counts
    first = (hole_starts - before * tokens).repeat(counts)
    apart = _starts_and_ends(first + np.arange(0, len(first) * tokens, tokens), size)
    return min(together, apart, key=lambda cuts: int(run.positions[cuts[1] - 1].sum()))


def _starts_and_ends(starts: LongArray, size: int) -> tuple[LongArray, LongArray]:
    """Starts and ends of consecutive pieces in [0, size)."""
    ends = np.empty_like(starts)
    ends[:-1], ends[-1] = starts[1:], size
    return starts, ends


def _split(tiles: LongArray, keys: LongArray, counts: LongArray, shape: TileShape) -> TilePlan:
    """Items of tiles split into `counts` pieces of whole key blocks."""
    block = shape.keys
    split = counts > 1
    parts = counts * split
    first_parts = parts.cumsum() - parts
    merges = np.array((tiles[_ROW], tiles[_ROWS], first_parts, counts), dtype=np.int32)
    # What items need to know of their tile, [fields, tiles]; then repeated per item, [fields,
    # items].
    of_tiles = np.array(
        (
            *tiles[:_LAST_POSITION],
            keys,
            -(-keys // (counts * block)) * block,
            counts.cumsum() - counts,
            np.where(split, first_parts, -1),  # a tile's only item has number 0 and keeps the -1
        )
    )
    of_items = of_tiles.repeat(counts, axis=1)
    row, rows, base, first, tile_keys, each, first_item, first_part = of_items
    number = np.arange(len(row)) - first_item
    begin = np.minimum(number * each, tile_keys)
    end = np.minimum(begin + each, tile_keys)
    # All rows see the keys up to the first row's own; whole blocks of those need no mask.
    seen_by_all = np.minimum(np.maximum(first + 1, begin), end)
    order = (begin - end).argsort(kind="stable")
    items = np.zeros((len(row), ITEM_FIELDS), dtype=np.int32)
    items[:, 0] = row
    items[:, 1] = rows
    items[:, 2] = base
    items[:, 3] = begin
    items[:, 4] = end
    items[:, 5] = begin + (seen_by_all - begin) // block * block
    items[:, 6] = first_part + number
    return TilePlan(
        shape=shape,
        items=items[order],
        merges=np.ascontiguousarray(merges.T[split]),
        parts=int(parts.sum()),
    )
