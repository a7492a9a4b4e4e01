"""GPU attention of one pass: one launch over all tiles of all holes of all requests.

`engine.cuda.tiles` defines tiles and items. A program owns one item of one K/V head. It loads the
tile's queries once, with all query heads of the K/V head folded into its rows, walks over the
item's keys and keeps a running softmax. Keys are read in place from the pool: by bulk tensor copies
if every request's pages are contiguous, else through page numbers. `engine.attention` is the
reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from semblend.core.errors import MissingExtraError
from semblend.engine.cuda.tiles import ITEM_FIELDS, MERGE_FIELDS, TileShape

try:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from triton.tools.tensor_descriptor import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        TensorDescriptor,
    )
except ImportError as error:
    raise MissingExtraError(package="triton", extra="gpu", purpose="Attention on a GPU") from error

LOG2_E = 1.4426950408889634
_MERGED_ROWS = 16
"""Rows of a tile that one program merges. No tile is smaller."""
FLOAT32_PRODUCTS = "tf32x3"
"""How float32 is multiplied: three tensor-core products, as exact as one in float32 and three
times as fast. Other types have only one way and ignore this.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileGroup:
    """The tiles of one shape, on the device."""

    shape: TileShape
    items: torch.Tensor
    """int32 [items, ITEM_FIELDS]"""
    merges: torch.Tensor
    """int32 [split tiles, MERGE_FIELDS]"""
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowMap:
    """Positions of a pass's rows and locations of their requests' keys, on the device."""

    positions: torch.Tensor
    """int32 [rows]"""
    slots: torch.Tensor
    """int32 [rows]: where each row's K/V goes."""
    pages: torch.Tensor | None
    """int32: page numbers of all requests, concatenated; None if pages are contiguous."""
    page_size: int
    groups: tuple[TileGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerKv:
    """K and V of one layer by slot, [slots, kv_heads, head_dim], as kernels take them."""

    keys: torch.Tensor
    values: torch.Tensor
    _descriptors: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def bulk(self, key_block: int) -> tuple[Any, Any]:
        """Descriptors for bulk copies of `key_block` tokens of one head, for K and V."""
        if key_block not in self._descriptors:
            block = [key_block, self.keys.shape[2]]
            self._descriptors[key_block] = (
                TensorDescriptor.from_tensor(self.keys.flatten(1), block),
                TensorDescriptor.from_tensor(self.values.flatten(1), block),
            )
        return self._descriptors[key_block]

    @property
    def allows_bulk(self) -> bool:
        """Whether bulk copies work: they need power-of-two blocks and rows of whole 16 bytes."""
        dim = self.keys.shape[2]
        return dim >= 16 and dim & (dim - 1) == 0 and self.keys.stride(0) % 16 == 0


def attend_tiles(
    queries: torch.Tensor, kv: LayerKv, rows: RowMap, scale: float, *, bulk: bool = True
) -> torch.Tensor:
    """Attention of all rows, [rows, query_heads, head_dim]. K/V must already be written.

    `queries` has that shape and may be a slice of wider rows.
    """
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    for group in rows.groups:
        _launch(queries, kv, rows, group, out, scale, bulk and kv.allows_bulk)
    return out


def _launch(
    queries: torch.Tensor,
    kv: LayerKv,
    rows: RowMap,
    group: TileGroup,
    out: torch.Tensor,
    scale: float,
    bulk: bool,
) -> None:
    _, heads, dim = queries.shape
    kv_heads = kv.keys.shape[1]
    shape = group.shape
    partial_size = (max(1, group.parts), kv_heads, shape.rows)
    part_out = torch.empty((*partial_size, dim), dtype=torch.float32, device=out.device)
    part_lse = torch.empty(partial_size, dtype=torch.float32, device=out.device)
    paged = rows.pages is not None
    bulk = bulk and not paged
    keys, values = kv.bulk(shape.keys) if bulk else (kv.keys, kv.values)
    head_block = max(16, triton.next_power_of_2(dim))
    _attend[(len(group.items), kv_heads)](
        queries,
        keys,
        values,
        out,
        rows.positions,
        rows.pages if paged else rows.positions,
        group.items,
        part_out,
        part_lse,
        scale * LOG2_E,
        queries.stride(0),
        kv.keys.stride(0),
        out.stride(0),
        page_size=rows.page_size,
        groups=heads // kv_heads,
        head_dim=dim,
        head_block=head_block,
        tile_rows=shape.rows,
        key_block=shape.keys,
        fields=ITEM_FIELDS,
        bulk=bulk,
        paged=paged,
        products=FLOAT32_PRODUCTS,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if group.parts:
        _merge[(len(group.merges), kv_heads, shape.rows // _MERGED_ROWS)](
            out,
            group.merges,
            part_out,
            part_lse,
            out.stride(0),
            groups=heads // kv_heads,
            head_dim=dim,
            head_block=head_block,
            tile_rows=shape.rows,
            merged_rows=_MERGED_ROWS,
            fields=MERGE_FIELDS,
            num_warps=4,
        )


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load(  # type: ignore[no-untyped-def]
    rows,
    pages,
    base,
    start,
    end,
    kv_head,
    slot_stride,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
    head_block: tl.constexpr,
    key_block: tl.constexpr,
    bulk: tl.constexpr,
    paged: tl.constexpr,
):
    """Load keys or values [start, start + key_block) of one head, [key_block, head_block]."""
    if bulk:
        block = rows.load([base + start, kv_head * head_dim])
    else:
        key = start + tl.arange(0, key_block)
        column = tl.arange(0, head_block)
        live = key < end
        if paged:
            page = tl.load(pages + base + key // page_size, mask=live, other=0)
            slot = page.to(tl.int64) * page_size + key % page_size
        else:
            slot = (base + key).to(tl.int64)
        at = rows + slot[:, None] * slot_stride + kv_head * head_dim + column[None, :]
        block = tl.load(at, mask=live[:, None] & (column < head_dim)[None, :], other=0.0)
    return block


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _walk(  # type: ignore[no-untyped-def]
    total,
    peak,
    out,
    query,
    keys,
    values,
    pages,
    base,
    begin,
    end,
    position,
    kv_head,
    scale,
    slot_stride,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
    head_block: tl.constexpr,
    key_block: tl.constexpr,
    masked: tl.constexpr,
    bulk: tl.constexpr,
    paged: tl.constexpr,
    products: tl.constexpr,
):
    """Update the running softmax with keys [begin, end). The mask hides keys after a row's
    position.
    """
    for start in tl.range(begin, end, key_block):
        key_rows = _load(
            keys, pages, base, start, end, kv_head, slot_stride,
            page_size, head_dim, head_block, key_block, bulk, paged,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(key_rows), input_precision=products) * scale
        if masked:
            key = start + tl.arange(0, key_block)
            scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen no keys yet has no peak to subtract.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak) if masked else new_peak
        weights = tl.math.exp2(scores - shift[:, None])
        fade = tl.math.exp2(peak - shift)
        total = total * fade + tl.sum(weights, 1)
        value_rows = _load(
            values, pages, base, start, end, kv_head, slot_stride,
            page_size, head_dim, head_block, key_block, bulk, paged,
        )  # fmt: skip
        if masked and bulk:
            # Slots after the request's last key belong to others and may hold anything.
            live = start + tl.arange(0, key_block) < end
            value_rows = tl.where(live[:, None], value_rows, 0.0)
        out = tl.dot(
            weights.to(value_rows.dtype), value_rows, out * fade[:, None], input_precision=products
        )
        peak = new_peak
    return total, peak, out


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _attend(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    target,
    positions,
    pages,
    items,
    part_out,
    part_lse,
    scale,
    query_stride,
    slot_stride,
    out_stride,
    page_size: tl.constexpr,
    groups: tl.constexpr,
    head_dim: tl.constexpr,
    head_block: tl.constexpr,
    tile_rows: tl.constexpr,
    key_block: tl.constexpr,
    fields: tl.constexpr,
    bulk: tl.constexpr,
    paged: tl.constexpr,
    products: tl.constexpr,
):
    item = items + tl.program_id(0) * fields
    kv_head = tl.program_id(1)
    first_row = tl.load(item)
    rows = tl.load(item + 1)
    base = tl.load(item + 2)
    begin = tl.load(item + 3)
    end = tl.load(item + 4)
    open_end = tl.load(item + 5)
    part = tl.load(item + 6)

    folded = tl.arange(0, tile_rows)
    token = folded // groups
    head = kv_head * groups + folded % groups
    live = token < rows
    row = (first_row + token).to(tl.int64)
    column = tl.arange(0, head_block)
    whole = live[:, None] & (column < head_dim)[None, :]
    at = row[:, None] * query_stride + head[:, None] * head_dim + column[None, :]
    query = tl.load(queries + at, mask=whole, other=0.0)
    position = tl.load(positions + row, mask=live, other=1 << 30)

    total = tl.zeros([tile_rows], dtype=tl.float32)
    peak = tl.full([tile_rows], float("-inf"), dtype=tl.float32)
    out = tl.zeros([tile_rows, head_block], dtype=tl.float32)
    total, peak, out = _walk(
        total, peak, out, query, keys, values, pages, base, begin, open_end, position,
        kv_head, scale, slot_stride, page_size, head_dim, head_block, key_block,
        False, bulk, paged, products,
    )  # fmt: skip
    total, peak, out = _walk(
        total, peak, out, query, keys, values, pages, base, open_end, end, position,
        kv_head, scale, slot_stride, page_size, head_dim, head_block, key_block,
        True, bulk, paged, products,
    )  # fmt: skip
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    if part < 0:
        to = row[:, None] * out_stride + head[:, None] * head_dim + column[None, :]
        tl.store(target + to, out.to(target.dtype.element_ty), mask=whole)
    else:
        place = (part * tl.num_programs(1) + kv_head).to(tl.int64) * tile_rows + folded
        tl.store(part_lse + place, peak + tl.math.log2(total), mask=live)
        tl.store(part_out + place[:, None] * head_dim + column[None, :], out, mask=whole)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _merge(  # type: ignore[no-untyped-def]
    target,
    merges,
    part_out,
    part_lse,
    out_stride,
    groups: tl.constexpr,
    head_dim: tl.constexpr,
    head_block: tl.constexpr,
    tile_rows: tl.constexpr,
    merged_rows: tl.constexpr,
    fields: tl.constexpr,
):
    """Merge partial results of some rows of a tile, weighted by their log-sum-exps."""
    entry = merges + tl.program_id(0) * fields
    kv_head = tl.program_id(1)
    first_row = tl.load(entry)
    rows = tl.load(entry + 1)
    first_part = tl.load(entry + 2)
    parts = tl.load(entry + 3)

    folded = tl.program_id(2) * merged_rows + tl.arange(0, merged_rows)
    token = folded // groups
    head = kv_head * groups + folded % groups
    live = token < rows
    column = tl.arange(0, head_block)
    whole = live[:, None] & (column < head_dim)[None, :]
    total = tl.zeros([merged_rows], dtype=tl.float32)
    peak = tl.full([merged_rows], float("-inf"), dtype=tl.float32)
    out = tl.zeros([merged_rows, head_block], dtype=tl.float32)
    for part in range(first_part, first_part + parts):
        place = (part * tl.num_programs(1) + kv_head).to(tl.int64) * tile_rows + folded
        lse = tl.load(part_lse + place, mask=live, other=0.0)
        new_peak = tl.maximum(peak, lse)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight, fade = tl.math.exp2(lse - shift), tl.math.exp2(peak - shift)
        piece = tl.load(part_out + place[:, None] * head_dim + column[None, :], mask=whole, other=0)
        out = out * fade[:, None] + piece * weight[:, None]
        total = total * fade + weight
        peak = new_peak
    row = (first_row + token).to(tl.int64)
    to = row[:, None] * out_stride + head[:, None] * head_dim + column[None, :]
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(target + to, out.to(target.dtype.element_ty), mask=whole)
