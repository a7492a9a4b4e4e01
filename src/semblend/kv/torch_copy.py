"""Gather, rotate, shift, scatter in torch: the reference, and the fallback without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from semblend.kv.depth_drift import DepthDrift, DepthMove, is_shifted
from semblend.kv.layer_rotary import Rotary
from semblend.kv.layout import SlotArray
from semblend.kv.numbers import decoded, encoded, is_fp8
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable, full_rows, swap_pairs
from semblend.kv.span_batch import CopyBatch, Destination, Source

_TILE_TOKENS = 1024
"""Tokens processed at a time, so that a tile's rows and keys stay in a core's cache."""
_MIN_RUN_TOKENS = 64
"""Mean run of consecutive slots above which slices are faster than index tensors."""

Selector = slice | torch.Tensor
Rows = tuple[torch.Tensor, torch.Tensor]


def copy_batch(
    destination: Destination,
    batch: CopyBatch,
    table: Rotary,
    *,
    drift: DepthDrift | None = None,
    layers: range | None = None,
    source_layer: int = 0,
) -> None:
    """Copy a checked batch, or some layers of it.

    Parameters
    ----------
    drift
        If given, on the destination's device: shift what moved far to its new depth.
    layers
        Layers of the destination; all by default.
    source_layer
        Layer of the sources that goes to the first of them.
    """
    layers = range(destination.layer_count) if layers is None else layers
    for run, rows in table.runs(layers):
        _copy_run(destination, batch, rows, drift, run, source_layer + run.start - layers.start)


def _copy_run(
    destination: Destination,
    batch: CopyBatch,
    table: RotaryTable,
    drift: DepthDrift | None,
    layers: range,
    source_layer: int,
) -> None:
    """Copy a batch on layers that rotate alike."""
    moves = batch.source_positions != batch.target_positions
    shifts = moves & False if drift is None else is_shifted(batch)
    for number, source in enumerate(batch.sources):
        here = batch.source_numbers == number
        for which, turns, shift in (
            (here & ~moves, False, False),
            (here & moves & ~shifts, True, False),
            (here & shifts, True, True),
        ):
            if not which.any():
                continue
            part = batch.part(which)
            for start, end in _tiles(part, to_slices=isinstance(destination, PagedKv)):
                tile = part.part(slice(start, end))
                _Tile(
                    destination,
                    source,
                    tile,
                    table if turns else None,
                    drift.of_batch(tile, table) if drift is not None and shift else None,
                ).copy(layers, source_layer)


class _Tile:
    """Tokens of one source that are treated alike, few enough to stay in a core's cache."""

    def __init__(
        self,
        destination: Destination,
        source: Source,
        tile: CopyBatch,
        table: RotaryTable | None,
        move: DepthMove | None,
    ) -> None:
        device, rows = destination.device, tile.source_slots
        if isinstance(source, torch.Tensor) and source.device != device:
            low, high = int(rows.min()), int(rows.max()) + 1
            source, rows = source[:, :, low:high].to(device), rows - low
        self._destination, self._source = destination, source
        self._table, self._move = table, move
        self._rows = _selector(rows, device)
        self._target = _selector(tile.target_slots, device)
        self._slots = tile.target_slots
        self._turn: Rows | None = None
        if table is not None:
            cos, sin = table.differences(
                _to_tensor(tile.source_positions, device), _to_tensor(tile.target_positions, device)
            )
            self._turn = full_rows(cos[:, None], sin[:, None], table.pairing)

    def copy(self, layers: range, source_layer: int) -> None:
        """Copy what the source holds from `source_layer` on to `layers`."""
        destination, ahead = self._destination, source_layer - layers.start
        if not isinstance(destination, PagedKv):
            slots = _to_tensor(self._slots, destination.device)
            for layer in layers:
                destination.write(layer, *self._moved(layer, layer + ahead), slots)
            return
        stack, source = destination.stack, self._source
        if stack is not None and isinstance(source, torch.Tensor) and self._move is None:
            theirs = source[source_layer : source_layer + len(layers)]
            self._copy_stack(stack[layers.start : layers.stop], theirs)
            return
        for layer in layers:
            keys, values = self._moved(layer, layer + ahead)
            _put(destination.keys[layer], self._target, keys)
            if values is not None:
                _put(destination.values[layer], self._target, values)

    def _copy_stack(self, pool: torch.Tensor, source: torch.Tensor) -> None:
        """If source and destination are one tensor each, copy V of all layers at once."""
        rows, target = self._rows, self._target
        if pool.shape[1] == 2:
            _store(pool[:, 1], target, source[:, 1, rows], dim=1)
        if self._table is None or self._turn is None:
            _store(pool[:, 0], target, source[:, 0, rows], dim=1)
            return
        for layer in range(pool.shape[0]):
            keys = source[layer, 0, rows]
            if isinstance(target, slice) and pool.dtype == torch.float32:
                _turn_into(pool[layer, 0][target], keys, self._turn, self._table)
            else:
                _store(pool[layer, 0], target, self._turned(keys), dim=0)

    def _moved(self, layer: int, source_layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A layer's K and V, [tokens, kv_heads, head_dim] each, in their final form.

        None for V if there is one part.
        """
        keys, values = self._read(source_layer)
        keys = self._turned(keys)
        if self._move is not None:
            keys = self._move.keys(layer, keys)
            values = None if values is None else self._move.values(layer, values)
        return keys, values

    def _read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        source, rows = self._source, self._rows
        if isinstance(source, PagedKv):
            both = [_picked(views[layer], rows) for views in (source.keys, source.values) if views]
        else:
            both = [part[rows] for part in source[layer]]
        return both[0], both[1] if len(both) == 2 else None

    def _turned(self, keys: torch.Tensor) -> torch.Tensor:
        """K at its new position."""
        if self._table is None or self._turn is None:
            return keys
        if not is_fp8(keys.dtype):
            return _turn(keys, self._turn, self._table)
        turned = _turn(decoded(keys), self._turn, self._table)
        return encoded(turned, keys.dtype, self._destination.clipped)


def _turn(keys: torch.Tensor, rows: Rows, table: RotaryTable) -> torch.Tensor:
    """Rotate `keys` [tokens, kv_heads, head_dim] in fp32 by rows [tokens, 1, rotary_dim]."""
    (cos, sin), which = rows, table.rotating
    rotating = keys[..., which].float()
    turned = (rotating * cos).addcmul_(swap_pairs(rotating, table.pairing), sin).to(keys.dtype)
    if table.rotary_dim == keys.shape[-1]:
        return turned
    return torch.cat((keys[..., : which.start], turned, keys[..., which.stop :]), dim=-1)


def _turn_into(slots: torch.Tensor, keys: torch.Tensor, rows: Rows, table: RotaryTable) -> None:
    """The same without an intermediate copy, for fp32."""
    (cos, sin), which = rows, table.rotating
    rotating, turned = keys[..., which], slots[..., which]
    torch.mul(rotating, cos, out=turned)
    turned.addcmul_(swap_pairs(rotating, table.pairing), sin)
    for rest in (slice(which.start), slice(which.stop, None)):
        slots[..., rest] = keys[..., rest]


def _put(view: torch.Tensor, target: Selector, tokens: torch.Tensor) -> None:
    """Write tokens into a view [blocks, block_size, kv_heads, head_dim]."""
    if (slots := _merged(view)) is not None:
        _store(slots, target, tokens, dim=0)
    else:
        view[_split(target, view)] = tokens


def _picked(view: torch.Tensor, rows: Selector) -> torch.Tensor:
    if (slots := _merged(view)) is not None:
        return slots[rows]
    return view[_split(rows, view)]


def _merged(view: torch.Tensor) -> torch.Tensor | None:
    """[slots, kv_heads, head_dim] over the same memory, if blocks are contiguous."""
    blocks, size = view.shape[:2]
    if size == 1:
        return view[:, 0]
    if blocks == 1 or view.stride(0) == size * view.stride(1):
        return view.flatten(0, 1)
    return None


def _split(selector: Selector, view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    slots = (
        torch.arange(selector.start, selector.stop, device=view.device)
        if isinstance(selector, slice)
        else selector
    )
    return slots // view.shape[1], slots % view.shape[1]


def _store(slots: torch.Tensor, target: Selector, values: torch.Tensor, *, dim: int) -> None:
    if isinstance(target, slice):
        slots.narrow(dim, target.start, target.stop - target.start).copy_(values)
        return
    if values.untyped_storage().data_ptr() == slots.untyped_storage().data_ptr():
        # A run of the pool itself is a view. No slot is both read and written, but torch compares
        # whole tensors and refuses.
        values = values.clone()
    slots.index_copy_(dim, target, values)


def _tiles(batch: CopyBatch, *, to_slices: bool) -> Iterator[tuple[int, int]]:
    """Split a batch into tiles [start, end), at the ends of long runs if there are any.

    `to_slices`: a run also ends where target slots jump. An engine that writes for us takes slot
    numbers and does not gain from it.
    """
    tokens = len(batch)
    breaks = np.diff(batch.source_slots) != 1
    if to_slices:
        breaks |= np.diff(batch.target_slots) != 1
    edges = np.concatenate(([0], np.flatnonzero(breaks) + 1, [tokens]))
    if (edges.size - 1) * _MIN_RUN_TOKENS > tokens:
        edges = np.array([0, tokens])
    for run_start, run_end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for start in range(run_start, run_end, _TILE_TOKENS):
            yield start, min(start + _TILE_TOKENS, run_end)


def _selector(slots: SlotArray, device: torch.device) -> Selector:
    """A slice if slots are consecutive, else an index tensor."""
    if slots[-1] - slots[0] == slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return _to_tensor(slots, device)


def _to_tensor(values: SlotArray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
