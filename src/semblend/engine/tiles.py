"""Cutting a pass into tiles of attention, on the host.

A GPU does not see segments. Every row of a pass has a request and a position and
sees the keys of its request up to that position; nothing else needs to be known.
So rows of one request are packed into *tiles* of a fixed size, whichever holes and
runs they come from, and one launch does all tiles of a pass. A tile reads the keys
up to its last row's position once for all its rows and query heads.

Few tiles would leave most of the device idle, so long key ranges are split into
*items* whose partial results are merged by their log-sum-exps. Where there are few,
programs are fewer than items: each walks over its share of all keys, the same for
every program to a block, through the end of one tile and on into the next.
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
LEAST_BLOCKS = 8
"""Blocks of keys below which an item costs more to begin and to merge than to compute."""
FEW_TILES = 6
"""Tiles a program from which on their lengths even out without being cut into equal shares."""
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
    programs: IntArray | None = None
    """[programs + 1]: the first item of each program and the end of the last one's; None where
    every item is a program of its own."""


def plan_tiles(
    runs: Sequence[RowRun],
    shape: TileShape,
    *,
    groups: int,
    kv_heads: int,
    processors: int,
    splits: int | None = None,
    programs_each: int = 1,
    few_tiles: int = FEW_TILES,
) -> TilePlan:
    """Cut `runs` into items that keep `processors` processors busy.

    Parameters
    ----------
    groups
        Query heads that share a K/V head.
    splits
        Items of every tile, for launches whose size must not change; chosen where None.
    programs_each
        Programs of this shape that run on a processor at a time.
    few_tiles
        Tiles a program below which all programs get equal shares.
    """
    tokens = shape.tokens(groups)
    tiles = np.concatenate([_cheapest_tiles(run, tokens) for run in runs])
    keys = tiles[:, 3] + 1
    programs = max(1, programs_each * processors // kv_heads)
    if splits is None and len(tiles) < few_tiles * programs:
        return _shared_out(tiles, keys, programs, shape)
    if splits is None:
        even = float(keys.sum()) * kv_heads / (ITEMS_EACH * processors)
        wanted = max(float(LEAST_BLOCKS * shape.keys), even)
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
    """Items of tiles cut into `counts` pieces of whole key blocks, a program each."""
    owner = np.repeat(np.arange(len(tiles)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    each = (-(-keys // (counts * shape.keys)) * shape.keys)[owner]
    begin = np.minimum(number * each, keys[owner])
    end = np.minimum(begin + each, keys[owner])
    items, merges, parts = _items(tiles, counts, owner, begin, end, shape)
    # The longest first: what is left over at the end is then short.
    items = np.ascontiguousarray(items[np.argsort(begin - end, kind="stable")])
    return TilePlan(shape=shape, items=items, merges=merges, parts=parts)


def _shared_out(tiles: LongArray, keys: LongArray, programs: int, shape: TileShape) -> TilePlan:
    """All key blocks of all tiles in a row, cut into one share a program and where tiles end."""
    blocks = -(-keys // shape.keys)
    ends = np.cumsum(blocks)
    total = int(ends[-1])
    # Programs beyond those that have enough to do get nothing: their number must not change.
    busy = min(programs, max(1, total // LEAST_BLOCKS))
    shares = np.minimum(np.arange(programs), busy) * total // busy
    starts = np.union1d(ends - blocks, shares[:busy])
    owner = np.searchsorted(ends, starts, side="right")
    before = (ends - blocks)[owner]
    begin = (starts - before) * shape.keys
    end = np.minimum((np.append(starts[1:], total) - before) * shape.keys, keys[owner])
    counts = np.bincount(owner, minlength=len(tiles))
    items, merges, parts = _items(tiles, counts, owner, begin, end, shape)
    first_items = np.append(np.searchsorted(starts, shares), len(starts))
    return TilePlan(
        shape=shape,
        items=items,
        merges=merges,
        parts=parts,
        programs=first_items.astype(np.int32),
    )


def _items(
    tiles: LongArray,
    counts: LongArray,
    owner: LongArray,
    begin: LongArray,
    end: LongArray,
    shape: TileShape,
) -> tuple[IntArray, IntArray, int]:
    """Items, merges and the number of partial results, from the keys [begin, end) of each item.

    Items stand tile by tile; tile `owner[i]` is that of item i, and has `counts` of them.
    """
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Keys up to the first row's own are seen by all rows; whole blocks of them need no mask.
    seen_by_all = np.clip(tiles[owner, 2] + 1, begin, end)
    open_end = begin + (seen_by_all - begin) // shape.keys * shape.keys
    split = counts > 1
    in_parts = np.where(split, counts, 0)
    first_part = np.cumsum(in_parts) - in_parts
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
    return items.astype(np.int32), np.ascontiguousarray(merges, dtype=np.int32), int(in_parts.sum())
