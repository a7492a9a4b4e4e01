"""The table an engine rotates K with, taken from its own model.

vLLM and SGLang share one rotary module between equal configurations, with its rows in
`cos_sin_cache` and under the same class names.
"""

from __future__ import annotations

from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
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
