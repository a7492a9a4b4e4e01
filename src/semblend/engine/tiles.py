"""Cutting a pass into tiles of attention, on the host.

A GPU does not see segments. Every row of a pass has a request and a position and
sees the keys of its request up to that position; nothing else needs to be known.
So rows of one request are packed into *tiles* of a fixed size, whichever holes and
runs they come from, and one launch does all tiles of a pass. A tile reads the keys
up to its last row's position once for all its rows and query heads.

Few tiles would leave most of the device idle, so long key ranges are split into
*items* whose partial results are merged by their log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]

ITEM_FIELDS = 8
"""Of an item: first row, rows, base, first key, end of keys, end of keys that every row sees,
number of its partial result (-1: it is the only one and writes the output), unused."""
ITEMS_EACH = 3
"""Items a processor should have, so that their lengths even out."""
MERGE_FIELDS = 4
"""Of a tile in several items: first row, rows, number of its first partial result, how many."""

_ROW, _ROWS, _BASE, _FIRST_POSITION, _LAST_POSITION = range(5)
"""Of a tile: first row, rows, base, and the positions of its first and last row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """How attention is cut up. Results do not depend on it beyond rounding."""

    rows: int
    """(token, query head of one K/V head) pairs of a tile; a power of two."""
    keys: int
    """Keys read at a time; a power of two."""
    warps: int
    stages: int

    def tokens(self, groups: int) -> int:
        """Tokens of a tile where `groups` query heads share a K/V head."""
        return max(1, self.rows // groups)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRun:
    """Rows [row, row + len(positions)) of a pass, all of one request, in order of position."""

    row: int
    positions: LongArray
    base: int
    """Where the request's keys begin: a slot, or an offset into the pass's page numbers."""
    breaks: LongArray
    """Offsets in `positions` at which another hole begins, 0 included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TilePlan:
    """One launch over tiles of one shape, and the merge of those that were split."""

    shape: TileShape
    items: IntArray
    """[items, ITEM_FIELDS], those with the most keys first."""
    merges: IntArray
    """[split tiles, MERGE_FIELDS]"""
    parts: int
    """Partial results."""


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
    """Cut `runs` into items that keep `processors` processors busy.

    Parameters
    ----------
    groups
        Query heads that share a K/V head.
    splits
        Items of every tile, for launches whose size must not change; chosen where None.
    """
    tokens = shape.tokens(groups)
    tiles = np.concatenate([_tiles(run, tokens) for run in runs], axis=1)
    keys = tiles[_LAST_POSITION] + 1
    if splits is None:
        # Below 512 keys an item costs more to begin and to merge than to compute.
        wanted = max(512.0, float(keys.sum()) * kv_heads / (items_each * processors))
        counts = np.maximum(1, np.rint(keys / wanted).astype(np.int64))
    else:
        counts = np.full(len(keys), splits, dtype=np.int64)
    return _split(tiles, keys, counts, shape)


def _tiles(run: RowRun, tokens: int) -> LongArray:
    """Tiles of one request, [numbers of a tile, tiles]."""
    starts, ends = _cheapest_cuts(run, tokens)
    tiles = np.empty((_LAST_POSITION + 1, len(starts)), dtype=np.int64)
    tiles[_ROW] = run.row + starts
    tiles[_ROWS] = ends - starts
    tiles[_BASE] = run.base
    tiles[_FIRST_POSITION] = run.positions[starts]
    tiles[_LAST_POSITION] = run.positions[ends - 1]
    return tiles


def _cheapest_cuts(run: RowRun, tokens: int) -> tuple[LongArray, LongArray]:
    """Where tiles of a request start and end.

    Filling tiles across holes needs fewer of them, but makes the last rows of a hole wait
    for the keys of the next; which is cheaper depends on how far apart holes are.
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
    """Of pieces that lie one behind another in [0, size)."""
    ends = np.empty_like(starts)
    ends[:-1], ends[-1] = starts[1:], size
    return starts, ends


def _split(tiles: LongArray, keys: LongArray, counts: LongArray, shape: TileShape) -> TilePlan:
    """Items of tiles cut into `counts` pieces of whole key blocks."""
    block = shape.keys
    split = counts > 1
    parts = counts * split
    first_parts = parts.cumsum() - parts
    merges = np.array((tiles[_ROW], tiles[_ROWS], first_parts, counts), dtype=np.int32)
    # What items have to know of their tile, [numbers, tiles]; then once an item, [numbers, items].
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
    # Keys up to the first row's own are seen by all rows; whole blocks of them need no mask.
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
