"""The rows vLLM rotates K with, taken from the engine itself."""

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


def table_from_model(model: torch.nn.Module) -> RotaryTable:
    """Rows of the model's one rotary module.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, several that differ, or one of a kind that K cannot follow.
    """
    found: dict[int, Any] = {
        id(module): module
        for module in model.modules()
        if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style")
    }
    if not found:
        raise UnsupportedRotaryError("the model has no rotary module with a cos_sin_cache")
    modules = list(found.values())
    for module in modules[1:]:
        if module.cos_sin_cache.shape != modules[0].cos_sin_cache.shape or not torch.equal(
            module.cos_sin_cache, modules[0].cos_sin_cache
        ):
            raise UnsupportedRotaryError("the model has several rotary modules that differ")
    return _table(modules[0])


def table_from_config(vllm_config: Any) -> RotaryTable:
    """Rows of the module vLLM makes from the model's configuration.

    For modes that run without our worker class. vLLM keeps one module for equal
    configurations, so this is the very module the model uses.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    model = vllm_config.model_config
    text = model.hf_text_config
    with set_current_vllm_config(vllm_config):
        module = get_rope(
            model.get_head_size(),
            max_position=int(text.max_position_embeddings),
            is_neox_style=True,
            rope_parameters=text.rope_parameters,
            dtype=model.dtype,
        )
    return _table(module)


def _table(module: Any) -> RotaryTable:
    name = type(module).__name__
    if name not in MOVABLE:
        raise UnsupportedRotaryError(
            f"rotary module {name}: known to be movable are {', '.join(sorted(MOVABLE))}"
        )
    pairing = Pairing.NEOX if module.is_neox_style else Pairing.INTERLEAVED
    return RotaryTable.from_cos_sin_cache(module.cos_sin_cache.detach().cpu(), pairing=pairing)
