"""Rotary positions the slow way: complex numbers in float64, one pair at a time."""

from __future__ import annotations

import cmath

import numpy as np
import torch


def place(
    keys: torch.Tensor, positions: list[int], frequencies: list[float], *, interleaved: bool
) -> torch.Tensor:
    """Rotate unrotated `keys` [tokens, heads, head_dim] to `positions`; float64."""
    result = keys.double().clone()
    for token, position in enumerate(positions):
        for pair, frequency in enumerate(frequencies):
            first, second = _members(pair, len(frequencies), interleaved)
            turn = cmath.exp(1j * position * frequency)
            for head in range(keys.shape[1]):
                number = complex(keys[token, head, first], keys[token, head, second]) * turn
                result[token, head, first] = number.real
                result[token, head, second] = number.imag
    return result


def copy_token_by_token(
    destination: torch.Tensor,
    source: torch.Tensor,
    moves: list[tuple[int, int, int, int]],
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    offset: int = 0,
) -> torch.Tensor:
    """What `destination` [layers, parts, slots, heads, head_dim] must hold, in float64.

    `moves` are (source row, target slot, source position, target position); numbers of a head
    rotate from `offset` on.
    """
    result = destination.double().clone()
    pairs = cos.shape[1]
    for row, slot, at, to in moves:
        result[:, :, slot] = source[:, :, row].double()
        if at == to:
            continue
        for pair in range(pairs):
            undo = complex(cos[at, pair], sin[at, pair])
            turn = complex(cos[to, pair], sin[to, pair]) / undo
            first, second = _members(pair, pairs, interleaved, offset)
            keys = source[:, 0, row].double().numpy()
            turned = (keys[..., first] + 1j * keys[..., second]) * turn
            result[:, 0, slot, :, first] = torch.from_numpy(np.ascontiguousarray(turned.real))
            result[:, 0, slot, :, second] = torch.from_numpy(np.ascontiguousarray(turned.imag))
    return result


def _members(pair: int, pairs: int, interleaved: bool, offset: int = 0) -> tuple[int, int]:
    first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
    return offset + first, offset + second


def shift_token_by_token(
    pool: torch.Tensor,
    moves: list[tuple[int, int, int, int]],
    depths: list[float],
    means: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    first_number: int = 0,
) -> torch.Tensor:
    """`pool` [layers, parts, slots, heads, head_dim] with what moved far at its depth; float64.

    `moves` are (offset in its span, target slot, source position, target position); `means` are
    [layers, parts, depths, heads, head_dim]; numbers of a head rotate from `first_number` on.
    """
    result = pool.double().clone()
    table = means.double().numpy()
    pairs = cos.shape[1]
    for offset, slot, at, to in moves:
        if abs(to - at) <= 256:
            continue
        middle = 7.5 - offset % 16
        away = _between(depths, table, to + middle) - _between(depths, table, at + middle)
        result[:, 1:, slot] += torch.from_numpy(away[:, 1:])
        keys = away[:, 0].copy()
        for pair in range(pairs):
            turn = complex(cos[to, pair], sin[to, pair]) / complex(cos[0, pair], sin[0, pair])
            first, second = _members(pair, pairs, interleaved, first_number)
            turned = (away[:, 0, :, first] + 1j * away[:, 0, :, second]) * turn
            keys[..., first], keys[..., second] = turned.real, turned.imag
        result[:, 0, slot] += torch.from_numpy(keys)
    return result


def _between(depths: list[float], table: np.ndarray, depth: float) -> np.ndarray:
    """A straight line between the table's two neighbours of a depth; flat beyond its ends."""
    inside = min(max(depth, depths[0]), depths[-1])
    high = next(n for n, one in enumerate(depths) if one >= inside)
    low = max(0, high - 1)
    if low == high:
        return table[:, :, 0]
    share = (inside - depths[low]) / (depths[high] - depths[low])
    return (1 - share) * table[:, :, low] + share * table[:, :, high]
