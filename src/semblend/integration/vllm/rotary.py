"""The table vLLM rotates K with, taken from the engine itself."""

from __future__ import annotations

from typing import Any

import torch

from semblend.integration.loaded_model.rotary_rows import rotary_module, table_of
from semblend.kv.rotary_table import RotaryTable


def table_from_model(model: torch.nn.Module) -> RotaryTable:
    """The table of the model's only rotary module.

    Raises
    ------
    UnsupportedRotaryError
        If there is none, several that differ, or one whose K cannot be moved.
    """
    return table_of(rotary_module(model)).to("cpu")


def table_from_config(vllm_config: Any) -> RotaryTable:
    """The table of the module vLLM makes from the model's configuration.

    For modes that run without our worker class. vLLM shares one module between equal
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
    return table_of(module).to("cpu")
