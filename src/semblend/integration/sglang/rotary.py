"""The rows SGLang rotates K with, taken from the engine itself and proven at start."""

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
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of K's largest number. A wrong pairing or a missing rotation errs by about 1."""


def table_from_model(model: torch.nn.Module) -> RotaryTable:
    """Rows of the model's one rotary module, proven by moving K with them.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, several that differ, one of a kind that K cannot follow, or one
        whose own rotation is not what moving K with its rows gives.
    """
    modules = list(
        {
            id(module): module
            for module in model.modules()
            if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style")
        }.values()
    )
    if not modules:
        raise UnsupportedRotaryError("the model has no rotary module with a cos_sin_cache")
    first: Any = modules[0]
    for module in modules[1:]:
        rows: Any = module.cos_sin_cache
        if rows.shape != first.cos_sin_cache.shape or not torch.equal(rows, first.cos_sin_cache):
            raise UnsupportedRotaryError("the model has several rotary modules that differ")
    name = type(first).__name__
    if name not in MOVABLE:
        raise UnsupportedRotaryError(
            f"rotary module {name}: known to be movable are {', '.join(sorted(MOVABLE))}"
        )
    pairing = Pairing.NEOX if first.is_neox_style else Pairing.INTERLEAVED
    table = RotaryTable.from_cos_sin_cache(first.cos_sin_cache.detach(), pairing=pairing)
    _prove(first, table)
    return table


@torch.inference_mode()
def _prove(module: Any, table: RotaryTable) -> None:
    """Move K between positions and compare with what the module itself computes there."""
    device, dtype = module.cos_sin_cache.device, module.dtype
    last = table.positions - 1
    positions = sorted({0, min(1, last), last // 3, last})
    width = module.head_size
    numbers = torch.randn(width, generator=torch.Generator().manual_seed(1))
    keys = numbers.to(device, dtype).expand(len(positions), width).contiguous()
    at = torch.tensor(positions, device=device)
    # forward_native is the definition that SGLang's kernels are written to.
    _, rotated = module.forward_native(at, keys.clone(), keys.clone())
    rotated = rotated.view(len(positions), 1, width)
    for source, start in enumerate(positions):
        for target, end in enumerate(positions):
            moved = table.rerotate(rotated[source : source + 1], at[source, None], at[target, None])
            _compare(moved, rotated[target : target + 1], start, end)


def _compare(moved: torch.Tensor, expected: torch.Tensor, source: int, target: int) -> None:
    error = float((moved.double() - expected.double()).abs().max())
    relative = error / float(expected.double().abs().max().clamp(min=1e-12))
    # Written so that a NaN fails.
    if not relative <= _TOLERANCE.get(expected.dtype, 4e-2):
        raise UnsupportedRotaryError(
            f"start-up self-test: K moved from position {source} to {target} differs from the "
            f"model's own by {relative:.2e} of its largest value"
        )
