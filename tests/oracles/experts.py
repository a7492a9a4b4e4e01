"""Feed-forward layers with experts in float64, written from the mathematics.

Weights are read by their names in a transformers state dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_SIGMOID = ("glm4_moe", "minimax_m2")
"""Routers that score experts one by one; the others take a softmax over all of them."""
_NORMED = ("mixtral", "minimax_m2")
"""Models that always make the chosen experts' weights sum to one; others say so."""


def mixture(
    x: torch.Tensor, weights: Mapping[str, torch.Tensor], prefix: str, config: Any
) -> torch.Tensor:
    """What the experts of one layer add to [tokens, hidden]; `prefix` names the layer's part."""
    mixed = torch.zeros_like(x)
    experts, shares = _routed(x, weights, prefix, config)
    for token, chosen in enumerate(experts.tolist()):
        for expert, share in zip(chosen, shares[token], strict=True):
            gate_up = weights[f"{prefix}experts.gate_up_proj"][expert]
            gate, up = (gate_up @ x[token]).chunk(2)
            down = weights[f"{prefix}experts.down_proj"][expert]
            mixed[token] += share * (down @ (torch.nn.functional.silu(gate) * up))
    if f"{prefix}shared_experts.gate_proj.weight" in weights:
        mixed += gated(x, weights, f"{prefix}shared_experts.")
    if f"{prefix}shared_expert.gate_proj.weight" in weights:
        open_by = (x @ weights[f"{prefix}shared_expert_gate.weight"].T).sigmoid()
        mixed += open_by * gated(x, weights, f"{prefix}shared_expert.")
    return mixed


def gated(x: torch.Tensor, weights: Mapping[str, torch.Tensor], prefix: str) -> torch.Tensor:
    """A gated feed-forward layer of three matrices, [tokens, hidden]."""
    gate = x @ weights[f"{prefix}gate_proj.weight"].T
    up = x @ weights[f"{prefix}up_proj.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ weights[f"{prefix}down_proj.weight"].T


def _bias(weights: Mapping[str, torch.Tensor], prefix: str) -> torch.Tensor:
    """What is added to the scores to choose experts, and not to weigh them."""
    return next(
        value
        for name, value in weights.items()
        if name.startswith(prefix) and name.endswith("e_score_correction_bias")
    )


def _routed(
    x: torch.Tensor, weights: Mapping[str, torch.Tensor], prefix: str, config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts and their shares, both [tokens, experts per token]."""
    kind = config.model_type
    logits = x @ weights[f"{prefix}gate.weight"].T
    apart = kind in _SIGMOID and getattr(config, "scoring_func", "sigmoid") == "sigmoid"
    scores = logits.sigmoid() if apart else logits.softmax(-1)
    ranked = scores + _bias(weights, prefix) if apart else scores
    chosen = ranked.topk(config.num_experts_per_tok, dim=-1).indices
    shares = scores.gather(1, chosen)
    if kind in _NORMED or getattr(config, "norm_topk_prob", False):
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen, shares * getattr(config, "routed_scaling_factor", 1.0)
