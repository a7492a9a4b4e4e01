"""The planner's cost model for a model an engine has loaded."""

from __future__ import annotations

from typing import Any

from semblend.planning.cost import CostModel


def cost_model(text_config: Any) -> CostModel:
    """The cost of a decoder of this shape, from its Hugging Face text configuration."""
    hidden = int(text_config.hidden_size)
    heads = int(text_config.num_attention_heads)
    layers = int(text_config.num_hidden_layers)
    head_dim = int(getattr(text_config, "head_dim", None) or hidden // heads)
    kv_heads = int(getattr(text_config, "num_key_value_heads", None) or heads)
    a_layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * _inner(text_config)
    return CostModel.for_model(
        parameters=max(1, layers * a_layer), layers=layers, query_heads=heads, head_dim=head_dim
    )


def _inner(text_config: Any) -> int:
    """How wide the feed-forward layer of one token is; of experts, only those it goes through."""

    def stated(name: str) -> int:
        return int(getattr(text_config, name, None) or 0)

    dense = stated("intermediate_size") or 4 * int(text_config.hidden_size)
    chosen = stated("num_experts_per_tok")
    if not chosen:
        return dense
    one = stated("moe_intermediate_size") or dense
    shared = stated("shared_expert_intermediate_size") or stated("n_shared_experts") * one
    return chosen * one + shared
