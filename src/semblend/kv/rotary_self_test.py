"""The start-up proof that we move K to where the model itself would place it.

A single token attends only to itself, so its hidden states do not depend on its position. Any
difference between its K at two positions is therefore the model's rotation, on every layer.
Comparing it with ours detects a wrong pairing, a layer without rotary positions, a partial rotation
or a scale, whatever the model calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_table import RotaryTable

_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest error allowed, relative to the largest number in K. A wrong pairing errs by about 1."""


def positions_to_prove(rows: int) -> list[int]:
    """The first, two middle and the last of this many positions."""
    last = rows - 1
    return sorted({0, min(1, last), last // 3, last})


def prove_moves(
    table: RotaryTable, positions: Sequence[int], computed: Sequence[torch.Tensor]
) -> None:
    """Move K from each position to each other and compare with what was computed there.

    Parameters
    ----------
    computed
        K of one token at each position, [layers, 1, kv_heads, head_dim].

    Raises
    ------
    UnsupportedRotaryError
        Naming the layer and the two positions where the results differ.
    """
    for source, keys in zip(positions, computed, strict=True):
        for target, expected in zip(positions, computed, strict=True):
            moved = table.rerotate(keys, torch.tensor([source]), torch.tensor([target]))
            _compare(moved, expected, source, target)


@torch.no_grad()
def self_test(
    model: Any,
    table: RotaryTable,
    *,
    positions: Sequence[int] | None = None,
    token_id: int = 1,
) -> None:
    """Compare moved K with K the model computes at the new position, on every layer.

    Parameters
    ----------
    model
        A transformers causal language model, called with one token and `position_ids`.
    positions
        Positions to move between; by default the first, two in the middle and the last.

    Raises
    ------
    UnsupportedRotaryError
        Naming the layer and the two positions where the results differ.
    """
    chosen = positions_to_prove(table.positions) if positions is None else sorted(set(positions))
    prove_moves(table, chosen, [_keys_at(model, position, token_id) for position in chosen])


@torch.no_grad()
def self_test_rotation(
    rotary_module: Any, apply_rotary: Any, table: RotaryTable, *, head_dim: int
) -> None:
    """The same proof for a rotary module and its `apply_rotary_pos_emb`, without weights."""
    generator = torch.Generator().manual_seed(0)
    last = table.positions - 1
    source, target = torch.tensor([last // 2, last]), torch.tensor([last, last // 3])
    keys = torch.randn(1, 3, 2, head_dim, generator=generator)
    rotated = [_apply(rotary_module, apply_rotary, keys, at) for at in (source, target)]
    moved = table.rerotate(rotated[0].transpose(1, 2), source, target).transpose(1, 2)
    _compare(moved, rotated[1], int(source[0]), int(target[0]))


def _keys_at(model: Any, position: int, token_id: int) -> torch.Tensor:
    """K of a single token, shape [layers, 1, kv_heads, head_dim]."""
    device = model.get_input_embeddings().weight.device
    output = model(
        input_ids=torch.tensor([[token_id]], device=device),
        position_ids=torch.tensor([[position]], device=device),
        use_cache=True,
    )
    layers = [layer.keys for layer in output.past_key_values.layers]
    return torch.stack(layers)[:, 0].transpose(1, 2)


def _apply(
    rotary_module: Any, apply_rotary: Any, keys: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Rotate `keys` [1, heads, tokens, head_dim] with the model's own function."""
    cos, sin = rotary_module(keys, positions[None])
    rotary_dim = cos.shape[-1]
    turned = apply_rotary(keys[..., :rotary_dim], keys[..., :rotary_dim], cos, sin)[1]
    return torch.cat((turned, keys[..., rotary_dim:]), dim=-1)


def _compare(moved: torch.Tensor, expected: torch.Tensor, source: int, target: int) -> None:
    error = (moved.double() - expected.double()).abs().flatten(1).amax(dim=1)
    scale = expected.double().abs().max().clamp(min=1e-12)
    worst = int(error.argmax())
    relative = float(error[worst] / scale)
    # Written so that a NaN fails.
    if not relative <= _TOLERANCE.get(expected.dtype, 4e-2):
        raise UnsupportedRotaryError(
            f"rotary self-test: K of layer {worst} moved from position {source} to {target} "
            f"differs from the model's own by {relative:.2e} of its largest value"
        )
