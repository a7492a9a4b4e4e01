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
) -> torch.Tensor:
    """What `destination` [layers, 2, slots, heads, head_dim] must hold, in float64.

    `moves` are (source row, target slot, source position, target position).
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
            first, second = _members(pair, pairs, interleaved)
            keys = source[:, 0, row].double().numpy()
            turned = (keys[..., first] + 1j * keys[..., second]) * turn
            result[:, 0, slot, :, first] = torch.from_numpy(np.ascontiguousarray(turned.real))
            result[:, 0, slot, :, second] = torch.from_numpy(np.ascontiguousarray(turned.imag))
    return result


def _members(pair: int, pairs: int, interleaved: bool) -> tuple[int, int]:
    return (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
