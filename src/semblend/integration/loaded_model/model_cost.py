"""The planner's cost model for a model an engine has loaded."""

from __future__ import annotations

from typing import Any

from semblend.planning.cost import CostModel


def cost_model(text_config: Any) -> CostModel:
    """The cost of a dense decoder of this shape, from its Hugging Face text configuration."""
    hidden = int(text_config.hidden_size)
    heads = int(text_config.num_attention_heads)
    layers = int(text_config.num_hidden_layers)
    head_dim = int(getattr(text_config, "head_dim", None) or hidden // heads)
    kv_heads = int(getattr(text_config, "num_key_value_heads", None) or heads)
    inner = int(getattr(text_config, "intermediate_size", None) or 4 * hidden)
    a_layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * inner
    return CostModel.for_model(
        parameters=max(1, layers * a_layer), layers=layers, query_heads=heads, head_dim=head_dim
    )
