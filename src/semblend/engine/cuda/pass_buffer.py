"""Everything a GPU pass needs to know in one buffer, so that it takes one transfer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from semblend.engine.batch import LayerHook
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cuda.forward import LayerCall, Rows
from semblend.engine.cuda.tiled_attention import RowMap, TileGroup
from semblend.engine.cuda.tiles import IntArray, TilePlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A pass as numbers on the host."""

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    wanted: IntArray
    pages: IntArray | None
    plans: tuple[TilePlan, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that determine how a pass is launched. Passes of equal size differ only in
        data.
        """
        tiles = [(plan.shape.rows, len(plan.items), len(plan.merges)) for plan in self.plans]
        pages = 0 if self.pages is None else len(self.pages)
        return (len(self.tokens), len(self.wanted), pages, *(n for sizes in tiles for n in sizes))


def padded(layout: Layout, rows: int, items: int) -> Layout | None:
    """Pad the pass to `rows` rows and `items` items; None if it does not fit.

    Added rows have no slot and no tile, added items and merges no rows, so nothing is written for
    them.
    """
    (plan,) = layout.plans
    merges = items // 2
    if len(layout) > rows or len(plan.items) > items or len(plan.merges) > merges:
        return None
    return replace(
        layout,
        tokens=_longer(layout.tokens, rows, 0),
        positions=_longer(layout.positions, rows, 0),
        slots=_longer(layout.slots, rows, -1),
        plans=(
            replace(
                plan,
                items=_longer(plan.items, items, 0),
                merges=_longer(plan.merges, merges, 0),
                parts=items,
            ),
        ),
    )


def _longer(array: IntArray, size: int, fill: int) -> IntArray:
    """Append rows of `fill`. numpy's own padding takes ten times as long."""
    result = np.empty((size, *array.shape[1:]), dtype=array.dtype)
    result[: len(array)] = array
    result[len(array) :] = fill
    return result


def to_device(
    layout: Layout,
    pool: PagedPool,
    *,
    hook: LayerHook | None = None,
    before_layer: LayerCall | None = None,
) -> Rows:
    """Put everything a pass needs on the device in one transfer, as views of one buffer."""
    host, places = _packed(layout, pool.data.device)
    buffer = host.to(pool.data.device, non_blocking=True)
    views = [buffer[start : start + size].view(shape) for start, size, shape in places]
    tiles = iter(views[4:])
    return Rows(
        tokens=views[0],
        map=RowMap(
            positions=views[1],
            slots=views[2],
            pages=None if layout.pages is None else views[-1],
            page_size=pool.page_size,
            groups=tuple(
                TileGroup(shape=plan.shape, items=next(tiles), merges=next(tiles), parts=plan.parts)
                for plan in layout.plans
            ),
        ),
        wanted=views[3],
        buffer=buffer,
        before_layer=before_layer,
        hook=hook,
    )


def refill(layout: Layout, rows: Rows) -> None:
    """Overwrite `rows` with a pass of the same sizes, so that its views hold this pass."""
    host, _ = _packed(layout, rows.buffer.device)
    rows.buffer.copy_(host, non_blocking=True)


def _packed(
    layout: Layout, device: torch.device
) -> tuple[torch.Tensor, list[tuple[int, int, tuple[int, ...]]]]:
    """All arrays of a pass concatenated, with each one's start, size and shape."""
    parts = [layout.tokens, layout.positions, layout.slots, layout.wanted]
    parts += [array for plan in layout.plans for array in (plan.items, plan.merges)]
    if layout.pages is not None:
        parts.append(layout.pages)
    # Sections start at 16 bytes, because kernels are compiled for aligned pointers.
    total = sum(-(-part.size // 4) * 4 for part in parts)
    host = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
    packed = host.numpy()
    places, start = [], 0
    for part in parts:
        packed[start : start + part.size] = part.ravel()
        places.append((start, part.size, part.shape))
        start += -(-part.size // 4) * 4
    return host, places
