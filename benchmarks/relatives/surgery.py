"""Other architectures from the reference model's weights, as near to it as they can start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import (
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

EXPERTS = 4
ACTIVE_EXPERTS = 2
SHARED_WIDTH = 64
"""Qwen2-MoE has an expert that all tokens pass; this one starts as nothing."""
WINDOW_TOKENS = 256
LATENT_RANK = 96
"""Of 256, which is all of K and V."""
ROUTER_SCALE = 0.02

Make = Callable[[LlamaForCausalLM], PreTrainedModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """One architecture, and how it is made."""

    name: str
    changed: str
    """What differs from the reference, for people."""
    make: Make
    certified_in: str
    """The engine whose certificate is asked for."""


def windows(reference: LlamaForCausalLM, *, tokens: int = WINDOW_TOKENS) -> Qwen2ForCausalLM:
    """Every second layer sees only the last `tokens` tokens; equal while prompts are shorter."""
    layers = reference.config.num_hidden_layers
    config = Qwen2Config(
        **_shared(reference),
        use_sliding_window=True,
        sliding_window=tokens,
        max_window_layers=0,
        layer_types=["sliding_attention" if at % 2 else "full_attention" for at in range(layers)],
    )
    return _filled(Qwen2ForCausalLM(config), _without_output_bias(reference))


def experts(reference: LlamaForCausalLM) -> Qwen2MoeForCausalLM:
    """Each MLP is copied into four experts, two of which a token passes; equal at first."""
    config = Qwen2MoeConfig(
        **_shared(reference),
        num_experts=EXPERTS,
        num_experts_per_tok=ACTIVE_EXPERTS,
        moe_intermediate_size=reference.config.intermediate_size,
        shared_expert_intermediate_size=SHARED_WIDTH,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    model = Qwen2MoeForCausalLM(config).to(_dtype(reference))
    kept = {n: t for n, t in _without_output_bias(reference).items() if ".mlp." not in n}
    missing, unexpected = model.load_state_dict(kept, strict=False)
    if unexpected or any(".mlp." not in name and name != "lm_head.weight" for name in missing):
        raise ValueError(f"not the reference's shape: {unexpected or missing}")
    with torch.no_grad():
        for ours, theirs in zip(model.model.layers, reference.model.layers, strict=True):
            _into_experts(ours.mlp, theirs.mlp)
    model.tie_weights()
    return model


def latent(reference: LlamaForCausalLM, *, rank: int = LATENT_RANK) -> LlamaForCausalLM:
    """K and V come from one latent of few numbers a token; equal at full rank.

    The latent is a linear map of the layer's input, and K is rotated behind it. `plain` writes the
    result as a Llama model, whose K/V then have that rank.
    """
    model = _filled(LlamaForCausalLM(reference.config), reference.state_dict())
    for layer in model.model.layers:
        attention: Any = layer.self_attn
        keys, values = attention.k_proj, attention.v_proj
        stacked = torch.cat([keys.weight, values.weight]).detach().float()
        left, sizes, right = torch.linalg.svd(stacked, full_matrices=False)
        roots = sizes[:rank].sqrt()
        down = nn.Linear(stacked.shape[1], len(roots), bias=False)
        up = left[:, :rank] * roots
        with torch.no_grad():
            down.weight.copy_(roots[:, None] * right[:rank])
        split = keys.weight.shape[0]
        attention.k_proj = FromLatent(down, up[:split], keys.bias).to(keys.weight.dtype)
        attention.v_proj = FromLatent(down, up[split:], values.bias).to(keys.weight.dtype)
    return model


def norms(reference: LlamaForCausalLM, *, samples: Sequence[torch.Tensor] = ()) -> Qwen3ForCausalLM:
    """Queries and keys are normalised before they are rotated.

    A norm takes lengths away, so this one cannot start equal: its weights give back the mean
    length of each layer's queries and keys over `samples`.
    """
    config = Qwen3Config(**_shared(reference), attention_bias=True)
    model = Qwen3ForCausalLM(config).to(_dtype(reference))
    model.load_state_dict(reference.state_dict(), strict=False)
    lengths = _mean_lengths(reference, samples)
    with torch.no_grad():
        for at, layer in enumerate(model.model.layers):
            attention: Any = layer.self_attn
            attention.q_norm.weight.fill_(lengths[f"{at}.q_proj"])
            attention.k_norm.weight.fill_(lengths[f"{at}.k_proj"])
    model.tie_weights()
    return model


class FromLatent(nn.Module):
    """K or V from the latent that both share."""

    def __init__(self, down: nn.Linear, up: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.down = down
        self.up = nn.Linear(up.shape[1], up.shape[0], bias=bias is not None)
        with torch.no_grad():
            self.up.weight.copy_(up)
            if bias is not None:
                self.up.bias.copy_(bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Down, then up."""
        return self.up(self.down(hidden))  # type: ignore[no-any-return]

    def composed(self) -> nn.Linear:
        """The same map as one layer."""
        weight = self.up.weight.float() @ self.down.weight.float()
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=self.up.bias is not None)
        with torch.no_grad():
            made.weight.copy_(weight)
            if self.up.bias is not None:
                made.bias.copy_(self.up.bias)
        return made.to(self.up.weight.device, self.up.weight.dtype)


def plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model as engines load it: latents composed into ordinary layers. Changes it."""
    for module in list(model.modules()):
        for name in ("k_proj", "v_proj"):
            found = getattr(module, name, None)
            if isinstance(found, FromLatent):
                setattr(module, name, found.composed())
    return model


RELATIVES = (
    Relative(
        name="windows",
        changed=f"windows of {WINDOW_TOKENS} tokens in every second layer (Qwen2)",
        make=windows,
        certified_in="embedded",
    ),
    Relative(
        name="experts",
        changed=f"{EXPERTS} experts for each MLP, {ACTIVE_EXPERTS} active (Qwen2-MoE)",
        make=experts,
        certified_in="vllm",
    ),
    Relative(
        name="latent",
        changed=f"K/V from a latent of {LATENT_RANK} numbers instead of 256 (Llama)",
        make=latent,
        certified_in="vllm",
    ),
    Relative(
        name="norms",
        changed="norms on queries and keys (Qwen3)",
        make=norms,
        certified_in="vllm",
    ),
)


def _into_experts(ours: Any, theirs: Any) -> None:
    """Fill a sparse block with copies of an MLP, in whichever form this transformers keeps it."""
    nn.init.normal_(ours.gate.weight, std=ROUTER_SCALE)
    nn.init.zeros_(ours.shared_expert.down_proj.weight)
    held = ours.experts
    if hasattr(held, "gate_up_proj"):  # all experts in one tensor
        both = torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight])
        held.gate_up_proj.copy_(both.expand(EXPERTS, *both.shape))
        down = theirs.down_proj.weight
        held.down_proj.copy_(down.expand(EXPERTS, *down.shape))
        return
    for expert in held:
        expert.load_state_dict(theirs.state_dict())


def _mean_lengths(reference: LlamaForCausalLM, samples: Sequence[torch.Tensor]) -> dict[str, float]:
    """Root mean square of each layer's queries and keys, by "layer.projection"."""
    width = reference.config.head_dim
    seen: dict[str, list[float]] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def note(module: nn.Module, given: Any, output: torch.Tensor) -> None:
            heads = output.float().unflatten(-1, (-1, width))
            seen.setdefault(name, []).append(float(heads.pow(2).mean(-1).sqrt().mean()))

        return note

    hooks = []
    for at, layer in enumerate(reference.model.layers):
        attention: Any = layer.self_attn
        for name in ("q_proj", "k_proj"):
            hooks.append(getattr(attention, name).register_forward_hook(watch(f"{at}.{name}")))
    try:
        with torch.inference_mode():
            for tokens in samples or [torch.arange(64)[None]]:
                reference(input_ids=tokens.to(reference.device))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: sum(found) / len(found) for name, found in seen.items()}


def _shared(reference: LlamaForCausalLM) -> dict[str, Any]:
    """What all of them have of the reference's configuration."""
    config = reference.config
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
        "max_position_embeddings", "initializer_range", "rms_norm_eps", "tie_word_embeddings",
        "bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _without_output_bias(reference: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Its weights, for classes whose attention has no bias behind it; the reference's is zero."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in reference.state_dict().items():
        if name.endswith("o_proj.bias"):
            if bool(tensor.any()):
                raise ValueError(f"{name}: this class has no such bias")
            continue
        found[name] = tensor
    return found


def _filled(model: Any, weights: dict[str, torch.Tensor]) -> Any:
    model = model.to(next(iter(weights.values())).dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise ValueError(f"not the reference's shape: {unexpected or missing}")
    model.tie_weights()
    return model


def _dtype(reference: LlamaForCausalLM) -> torch.dtype:
    return next(reference.parameters()).dtype
