"""The table vLLM rotates K with, taken from the engine itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.integration.loaded_model.rotary_rows import MOVABLE, layer_tables, table_of
from semblend.integration.vllm.layer_kv import is_latent, latent_dim
from semblend.kv.layer_rotary import Rotary
from semblend.kv.rotary_table import RotaryTable

MOVABLE_HERE = MOVABLE | {
    # Requests with images are left alone, and the positions of text are the same on all axes.
    "MRotaryEmbedding",
    # vLLM computes their rows for one length, whatever a prompt's is.
    "DynamicNTKAlphaRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding",
    "Phi3LongRoPEScaledRotaryEmbedding",
}


def table_from_model(model: torch.nn.Module, layers: Sequence[Any]) -> Rotary:
    """The rows of the rotary modules of the model, or of its part that reads text.

    Layer by layer where layers differ.

    Parameters
    ----------
    layers
        The model's attention layers, in order.

    Raises
    ------
    UnsupportedRotaryError
        If a layer has no rotary module, several that differ, or one whose K cannot be moved.
    """
    reads_text = getattr(model, "get_language_model", None)
    text = model if reads_text is None else reads_text()
    return layer_tables(text, layers, lambda module: _placed(module, layers[0]))


def table_from_config(vllm_config: Any, layers: Sequence[Any]) -> RotaryTable:
    """The table of the module vLLM makes from the model's configuration.

    For modes that run without our worker class. vLLM shares one module between equal
    configurations, so this is the very module the model uses.

    Raises
    ------
    UnsupportedRotaryError
        If the configuration alone does not say how each layer rotates.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    model = vllm_config.model_config
    text = model.hf_text_config
    if is_latent(layers[0]) or not isinstance(text.rope_parameters.get("rope_theta"), float | int):
        raise UnsupportedRotaryError(
            "how this model's layers rotate is read from the model itself, which only modes "
            "with execution=nested have"
        )
    with set_current_vllm_config(vllm_config):
        module = get_rope(
            model.get_head_size(),
            max_position=int(text.max_position_embeddings),
            is_neox_style=True,
            rope_parameters=text.rope_parameters,
            dtype=model.dtype,
        )
    return table_of(module, movable=MOVABLE_HERE).to("cpu")


def _placed(module: Any, layer: Any) -> RotaryTable:
    """A module's rows with where in a layer's heads they apply.

    Raises
    ------
    UnsupportedRotaryError
        If a row of latents declares another width than the module rotates.
    """
    table = table_of(module, movable=MOVABLE_HERE).to("cpu")
    if is_latent(layer) and table.rotary_dim != int(layer.qk_rope_head_dim):
        raise UnsupportedRotaryError(
            f"qk_rope_head_dim={layer.qk_rope_head_dim}, and the rotary module rotates "
            f"{table.rotary_dim} numbers"
        )
    return replace(table, offset=latent_dim(layer))
