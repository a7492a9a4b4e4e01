"""Gather, rotate, scatter in torch: the reference, and the way of machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from semblend.kv.layout import SlotArray
from semblend.kv.rotary_table import RotaryTable, full_rows, swap_pairs
from semblend.kv.span_batch import CopyBatch

_TILE_TOKENS = 1024
"""Tokens worked on at a time: rows and keys of a tile stay in a core's cache."""
_MIN_RUN_TOKENS = 64
"""Mean length of consecutive slots from which slices beat index tensors."""

Selector = slice | torch.Tensor


def copy_batch(destination: torch.Tensor, batch: CopyBatch, table: RotaryTable) -> None:
    """Copy a checked batch into `destination`, [layers, 2, slots, kv_heads, head_dim]."""
    moves = batch.source_positions != batch.target_positions
    for number, source in enumerate(batch.sources):
        here = batch.source_numbers == number
        _copy(destination, source, batch.part(here & ~moves), None)
        _copy(destination, source, batch.part(here & moves), table)


def _copy(
    destination: torch.Tensor, source: torch.Tensor, part: CopyBatch, table: RotaryTable | None
) -> None:
    """Copy the tokens of one source, K rotated where there is a table."""
    for start, end in _tiles(part):
        rows = _selector(part.source_slots[start:end], destination.device)
        target = _selector(part.target_slots[start:end], destination.device)
        _store(destination[:, 1], target, source[:, 1, rows], dim=1)
        if table is None:
            _store(destination[:, 0], target, source[:, 0, rows], dim=1)
            continue
        differences = table.differences(
            _to_tensor(part.source_positions[start:end], destination.device),
            _to_tensor(part.target_positions[start:end], destination.device),
        )
        cos, sin = full_rows(differences[0][:, None], differences[1][:, None], table.pairing)
        for layer in range(destination.shape[0]):
            _rotate_into(destination[layer, 0], target, source[layer, 0, rows], cos, sin, table)


def _rotate_into(
    slots: torch.Tensor,
    target: Selector,
    keys: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    table: RotaryTable,
) -> None:
    """Write `keys` [tokens, kv_heads, head_dim], turned by rows [tokens, 1, rotary_dim]."""
    rotary_dim = table.rotary_dim
    rotating = keys[..., :rotary_dim].float()
    if isinstance(target, slice) and slots.dtype == torch.float32:
        turned = slots[target][..., :rotary_dim]
        torch.mul(rotating, cos, out=turned)
        turned.addcmul_(swap_pairs(rotating, table.pairing), sin)
        slots[target][..., rotary_dim:] = keys[..., rotary_dim:]
        return
    turned = (rotating * cos).addcmul_(swap_pairs(rotating, table.pairing), sin)
    whole = torch.cat((turned.to(keys.dtype), keys[..., rotary_dim:]), dim=-1)
    _store(slots, target, whole, dim=0)


def _store(slots: torch.Tensor, target: Selector, values: torch.Tensor, *, dim: int) -> None:
    if isinstance(target, slice):
        slots.narrow(dim, target.start, target.stop - target.start).copy_(values)
    else:
        slots.index_copy_(dim, target, values)


def _tiles(batch: CopyBatch) -> Iterator[tuple[int, int]]:
    """Cut a batch into tiles [start, end), at long runs' ends where it has them."""
    tokens = len(batch)
    if not tokens:
        return
    breaks = (np.diff(batch.source_slots) != 1) | (np.diff(batch.target_slots) != 1)
    edges = np.concatenate(([0], np.flatnonzero(breaks) + 1, [tokens]))
    if (edges.size - 1) * _MIN_RUN_TOKENS > tokens:
        edges = np.array([0, tokens])
    for run_start, run_end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for start in range(run_start, run_end, _TILE_TOKENS):
            yield start, min(start + _TILE_TOKENS, run_end)


def _selector(slots: SlotArray, device: torch.device) -> Selector:
    """A slice where slots follow one another, else an index tensor."""
    if slots[-1] - slots[0] == slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return _to_tensor(slots, device)


def _to_tensor(values: SlotArray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
