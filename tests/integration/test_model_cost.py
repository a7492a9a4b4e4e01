"""The planner's cost of a token, from a model's configuration."""

from __future__ import annotations

from types import SimpleNamespace

from semblend.integration.loaded_model.model_cost import cost_model


def shape(**more):
    return SimpleNamespace(
        hidden_size=2048,
        num_attention_heads=32,
        num_key_value_heads=4,
        num_hidden_layers=48,
        head_dim=128,
        intermediate_size=6144,
        **more,
    )


def test_a_token_costs_the_experts_it_goes_through_and_no_others():
    """Qwen3-30B-A3B has 30 billion parameters; a token goes through 3 of them."""
    experts = {"num_experts_per_tok": 8, "moe_intermediate_size": 768}
    few = cost_model(shape(num_experts=8, **experts))
    assert cost_model(shape(num_experts=128, **experts)) == few
    assert few == cost_model(shape())  # eight of 768 are one of 6,144


def test_shared_experts_are_always_gone_through():
    experts = {"num_experts_per_tok": 7, "moe_intermediate_size": 768, "n_shared_experts": 1}
    assert cost_model(shape(**experts)) == cost_model(shape())
