"""The rows SGLang rotates K with, taken from the engine itself and proven at start."""

from __future__ import annotations

from typing import Any

import torch

from semblend.integration.rotary import rotary_module, table_of
from semblend.kv.rotary_self_test import positions_to_prove, prove_moves
from semblend.kv.rotary_table import RotaryTable


def table_from_model(model: torch.nn.Module) -> RotaryTable:
    """Rows of the model's one rotary module, proven by moving K with them.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, several that differ, one of a kind that K cannot follow, or one
        whose own rotation is not what moving K with its rows gives.
    """
    module = rotary_module(model)
    table = table_of(module)
    _prove(module, table)
    return table


@torch.inference_mode()
def _prove(module: Any, table: RotaryTable) -> None:
    """Move K between positions and compare with what the module itself computes there."""
    device, dtype = module.cos_sin_cache.device, module.dtype
    positions = positions_to_prove(table.positions)
    width = module.head_size
    numbers = torch.randn(width, generator=torch.Generator().manual_seed(1))
    keys = numbers.to(device, dtype).expand(len(positions), width).contiguous()
    at = torch.tensor(positions, device=device)
    # forward_native is the definition that SGLang's kernels are written to.
    _, rotated = module.forward_native(at, keys.clone(), keys.clone())
    computed = list(rotated.view(len(positions), 1, 1, 1, width))  # one layer, token and head
    prove_moves(table, positions, computed)
