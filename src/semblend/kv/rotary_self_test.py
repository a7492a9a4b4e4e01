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
from semblend.kv.layer_rotary import Rotary
from semblend.kv.numbers import decoded, unclipped
from semblend.kv.rotary_table import RotaryTable

_TOLERANCE = {
    torch.float64: 1e-4,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
    torch.uint8: 0.16,  # fp8: half of its last digit, of both sides of the comparison
}
"""Largest error allowed, relative to the largest number in K. A wrong pairing errs by about 1."""


def positions_to_prove(rows: int) -> list[int]:
    """The first, two middle and the last of this many positions."""
    last = rows - 1
    return sorted({0, min(1, last), last // 3, last})


def prove_moves(table: Rotary, positions: Sequence[int], computed: Sequence[torch.Tensor]) -> None:
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
            whole = unclipped(keys) & unclipped(expected)
            if not bool(whole.flatten(1).any(dim=1).all()):
                raise UnsupportedRotaryError(
                    "rotary self-test: a layer's K is clipped in all heads"
                )
            moved = table.rerotate(decoded(keys), torch.tensor([source]), torch.tensor([target]))
            _compare(moved * whole, decoded(expected) * whole, source, target, stored=keys.dtype)


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


def _compare(
    moved: torch.Tensor,
    expected: torch.Tensor,
    source: int,
    target: int,
    *,
    stored: torch.dtype | None = None,
) -> None:
    """Raise if they differ by more than `stored`, the type K was kept in, accounts for."""
    error = (moved.double() - expected.double()).abs().flatten(1).amax(dim=1)
    scale = expected.double().abs().max().clamp(min=1e-12)
    worst = int(error.argmax())
    relative = float(error[worst] / scale)
    # Written so that a NaN fails.
    if not relative <= _TOLERANCE.get(stored or expected.dtype, 4e-2):
        raise UnsupportedRotaryError(
            f"rotary self-test: K of layer {worst} moved from position {source} to {target} "
            f"differs from the model's own by {relative:.2e} of its largest value"
        )
