"""The table an engine rotates K with, taken from its own model.

vLLM and SGLang share one rotary module between equal configurations, with its rows in
`cos_sin_cache` and under the same class names.
"""

from __future__ import annotations

from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_self_test import positions_to_prove, prove_moves
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable

MOVABLE = frozenset(
    {
        "RotaryEmbedding",
        "LinearScalingRotaryEmbedding",
        "Llama3RotaryEmbedding",
        "YaRNScalingRotaryEmbedding",
    }
)
"""Classes whose angle is a fixed multiple of the position."""


def rotary_module(model: torch.nn.Module) -> Any:
    """The model's only rotary module.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, or several that differ.
    """
    found: dict[int, Any] = {
        id(module): module
        for module in model.modules()
        if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style")
    }
    if not found:
        raise UnsupportedRotaryError("the model has no rotary module with a cos_sin_cache")
    first, *others = found.values()
    for module in others:
        rows = module.cos_sin_cache
        if rows.shape != first.cos_sin_cache.shape or not torch.equal(rows, first.cos_sin_cache):
            raise UnsupportedRotaryError("the model has several rotary modules that differ")
    return first


def table_of(module: Any) -> RotaryTable:
    """A rotary module's table, without copying it.

    Raises
    ------
    UnsupportedRotaryError
        If K of this kind cannot be moved.
    """
    name = type(module).__name__
    if name not in MOVABLE:
        raise UnsupportedRotaryError(
            f"rotary module {name}: K can be moved only for {', '.join(sorted(MOVABLE))}"
        )
    pairing = Pairing.NEOX if module.is_neox_style else Pairing.INTERLEAVED
    return RotaryTable.from_cos_sin_cache(module.cos_sin_cache.detach(), pairing=pairing)


def proven_table(model: torch.nn.Module) -> RotaryTable:
    """Rows of the model's one rotary module, proven by moving K with them.

    For engines in which nothing can be run yet when the rows are needed: the module itself says
    what K is at a position. `worker.self_test` asks the whole model.

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
    # forward_native is the definition that the engine's kernels are written to.
    _, rotated = module.forward_native(at, keys.clone(), keys.clone())
    computed = list(rotated.view(len(positions), 1, 1, 1, width))  # one layer, token and head
    prove_moves(table, positions, computed)
