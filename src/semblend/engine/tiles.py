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
    tiles = np.concatenate([_cheapest_tiles(run, tokens) for run in runs])
    keys = tiles[:, 3] + 1
    if splits is None:
        # Below 512 keys an item costs more to begin and to merge than to compute.
        wanted = max(512.0, float(keys.sum()) * kv_heads / (items_each * processors))
        counts = np.maximum(1, np.rint(keys / wanted).astype(np.int64))
    else:
        counts = np.full(len(tiles), splits, dtype=np.int64)
    return _split(tiles, keys, counts, shape)


def _cheapest_tiles(run: RowRun, tokens: int) -> LongArray:
    """Tiles [tiles, (row, rows, first position, last position, base)] of one request.

    Filling tiles across holes needs fewer of them, but makes the last rows of a hole wait
    for the keys of the next; which is cheaper depends on how far apart holes are.
    """
    size = len(run.positions)
    filled = np.arange(0, size, tokens)
    if len(run.breaks) == 1:
        return _tiles(run, filled)
    ends = np.append(run.breaks[1:], size)
    counts = -(-(ends - run.breaks) // tokens)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    apart = _tiles(run, np.repeat(run.breaks, counts) + within * tokens)
    together = _tiles(run, filled)
    return together if together[:, 3].sum() <= apart[:, 3].sum() else apart


def _tiles(run: RowRun, starts: LongArray) -> LongArray:
    ends = np.append(starts[1:], len(run.positions))
    return np.stack(
        (
            run.row + starts,
            ends - starts,
            run.positions[starts],
            run.positions[ends - 1],
            np.full(len(starts), run.base),
        ),
        axis=1,
    )


def _split(tiles: LongArray, keys: LongArray, counts: LongArray, shape: TileShape) -> TilePlan:
    """Items of tiles cut into `counts` pieces of whole key blocks."""
    block = shape.keys
    owner = np.repeat(np.arange(len(tiles)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    each = (-(-keys // (counts * block)) * block)[owner]
    begin = np.minimum(number * each, keys[owner])
    end = np.minimum(begin + each, keys[owner])
    # Keys up to the first row's own are seen by all rows; whole blocks of them need no mask.
    seen_by_all = np.clip(tiles[owner, 2] + 1, begin, end)
    open_end = begin + (seen_by_all - begin) // block * block
    split = counts > 1
    first_part = np.cumsum(np.where(split, counts, 0)) - np.where(split, counts, 0)
    part = np.where(split[owner], first_part[owner] + number, -1)
    items = np.stack(
        (
            tiles[owner, 0],
            tiles[owner, 1],
            tiles[owner, 4],
            begin,
            end,
            open_end,
            part,
            np.zeros_like(part),
        ),
        axis=1,
    )
    merges = np.stack((tiles[:, 0], tiles[:, 1], first_part, counts), axis=1)[split]
    order = np.argsort(begin - end, kind="stable")
    return TilePlan(
        shape=shape,
        items=np.ascontiguousarray(items[order], dtype=np.int32),
        merges=np.ascontiguousarray(merges, dtype=np.int32),
        parts=int(counts[split].sum()),
    )
