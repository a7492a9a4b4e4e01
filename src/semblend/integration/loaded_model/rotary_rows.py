"""The table an engine rotates K with, taken from its own model.

vLLM and SGLang share one rotary module between equal configurations, with its rows in
`cos_sin_cache` and under the same class names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.layer_rotary import LayerRotary, Rotary
from semblend.kv.rotary_self_test import positions_to_prove, prove_moves
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable

MOVABLE = frozenset(
    {
        "RotaryEmbedding",
        "DeepseekScalingRotaryEmbedding",
        "LinearScalingRotaryEmbedding",
        "Llama3RotaryEmbedding",
        "YaRNScalingRotaryEmbedding",
    }
)
"""Classes whose angle is a fixed multiple of the position."""


def cos_sin_rows(module: Any) -> torch.Tensor | None:
    """The rows a module rotates with, [positions, rotary_dim]; None if it is no rotary module.

    longrope has rows for short and for long prompts. An engine that uses one kind for all prompts
    says so in `use_long_rope`.
    """
    if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style"):
        return module.cos_sin_cache  # type: ignore[no-any-return]
    if not hasattr(module, "long_short_cos_sin_cache") or not hasattr(module, "use_long_rope"):
        return None
    both, short = module.long_short_cos_sin_cache, module.original_max_position_embeddings
    return both[short:] if module.use_long_rope else both[:short]  # type: ignore[no-any-return]


def rotary_modules(model: torch.nn.Module) -> list[Any]:
    """The rotary modules in a module, one of each kind that differs."""
    found: list[Any] = []
    for module in model.modules():
        if cos_sin_rows(module) is not None and not any(_alike(module, one) for one in found):
            found.append(module)
    return found


def rotary_module(model: torch.nn.Module) -> Any:
    """The only rotary module of a model, or of a part of it.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, or several that differ.
    """
    found = rotary_modules(model)
    if not found:
        raise UnsupportedRotaryError("the model has no rotary module with a cos_sin_cache")
    if len(found) > 1:
        raise UnsupportedRotaryError("the model has several rotary modules that differ")
    return found[0]


def _alike(module: Any, other: Any) -> bool:
    rows, others = cos_sin_rows(module), cos_sin_rows(other)
    return module is other or (
        type(module) is type(other)
        and getattr(module, "is_neox_style", None) == getattr(other, "is_neox_style", None)
        and rows is not None
        and others is not None
        and rows.shape == others.shape
        and torch.equal(rows, others)
    )


def table_of(module: Any, *, movable: Collection[str] = MOVABLE) -> RotaryTable:
    """A rotary module's table, without copying it.

    Parameters
    ----------
    movable
        Names of the classes whose K can be moved.

    Raises
    ------
    UnsupportedRotaryError
        If K of this kind cannot be moved.
    """
    name = type(module).__name__
    if name not in movable:
        raise UnsupportedRotaryError(
            f"rotary module {name}: K can be moved only for {', '.join(sorted(movable))}"
        )
    rows = cos_sin_rows(module)
    if rows is None:
        raise UnsupportedRotaryError(f"rotary module {name}: its rows are not known")
    # longrope's modules do not say: they have no other pairing.
    neox = getattr(module, "is_neox_style", True)
    pairing = Pairing.NEOX if neox else Pairing.INTERLEAVED
    return RotaryTable.from_cos_sin_cache(rows.detach(), pairing=pairing)


def layer_tables(
    model: torch.nn.Module, layers: Sequence[Any], table: Callable[[Any], RotaryTable]
) -> Rotary:
    """The tables of a model's rotary modules: one, or one for each layer where they differ.

    Parameters
    ----------
    layers
        The model's attention layers, in order.
    table
        A module's table.

    Raises
    ------
    UnsupportedRotaryError
        If a layer has no rotary module, or several that differ.
    """
    if len(rotary_modules(model)) <= 1:
        return table(rotary_module(model))
    found = [rotary_module(_around(model, layer)) for layer in layers]
    kinds = list({id(module): module for module in found}.values())
    numbers = {id(module): number for number, module in enumerate(kinds)}
    return LayerRotary(
        tables=tuple(table(module) for module in kinds),
        of_layer=tuple(numbers[id(module)] for module in found),
    )


def _around(model: torch.nn.Module, layer: Any) -> torch.nn.Module:
    """The module that holds an attention layer, and with it what rotates for it."""
    for module in model.modules():
        if any(child is layer for child in module.children()):
            return module
    raise UnsupportedRotaryError("an attention layer is not part of the model")


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
