"""Tiny random models of every supported architecture, and plain transformers to compare with."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from semblend.core.tokens import TokenArray
from semblend.engine.model import LoadedModel, load_model, wrap_model

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

REFERENCE = Path(__file__).parents[2] / "models" / "semblend-reference-27m"
DEVICE = os.environ.get("SEMBLEND_TEST_DEVICE", "cpu")
"""Where engines of tests compute. With "cuda" the files that compare what an engine answers
(test_engine.py, test_failures.py, test_shadow.py) are tests of the whole engine on a GPU."""
VOCABULARY = 97
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FUSED_KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3")
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", {}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1, "attention_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    ),
    "qwen3-window": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "qwen2-moe": ("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3-moe": ("Qwen3Moe", {**_EXPERTS, "norm_topk_prob": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "glm4-moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
    ),
    "minimax-m2": (
        "MiniMaxM2",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    ),
}
FUSED = [
    name
    for name, (kind, changes) in ARCHITECTURES.items()
    if kind in _FUSED_KINDS and not changes.get("sliding_window")
]
"""Those with GPU passes of their own; experts and windows are left to transformers."""


ROPE_KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}


def plain_model(architecture: str, **config_changes: Any) -> Any:
    """A fresh model with random weights that depend on nothing but its name."""
    name, changes = ARCHITECTURES[architecture]
    changes = {**changes, **config_changes}
    config = getattr(transformers, f"{name}Config")(**{**_SHAPE, **changes})
    torch.manual_seed(len(architecture))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@cache
def tiny(architecture: str) -> tuple[LoadedModel, Any]:
    """The same weights twice: ready for the engine, and plain."""
    loaded = wrap_model(plain_model(architecture).to(DEVICE), name=architecture)
    return loaded, plain_model(architecture)


@cache
def reference() -> tuple[LoadedModel, Any]:
    """The bundled model twice."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
    return load_model(str(REFERENCE), device="cpu"), plain.eval()


@torch.no_grad()
def plain_logits(model: Any, tokens: TokenArray) -> torch.Tensor:
    """Last-token logits of an ordinary prefill, [vocabulary]."""
    return plain_rows(model, tokens, 1)[0]


@torch.no_grad()
def plain_rows(model: Any, tokens: TokenArray, rows: int) -> torch.Tensor:
    """Logits of the last tokens of an ordinary prefill, [rows, vocabulary]."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    return model(ids, use_cache=False, logits_to_keep=rows).logits[0].float()


@torch.no_grad()
def plain_kv(model: Any, tokens: TokenArray) -> torch.Tensor:
    """K/V of an ordinary prefill, [layers, 2, tokens, kv_heads, head_dim]."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    # Made without a configuration, it keeps what lies beyond windows too.
    layers = model(ids, past_key_values=transformers.DynamicCache()).past_key_values.layers
    return torch.stack(
        [torch.stack((layer.keys[0], layer.values[0])).transpose(1, 2) for layer in layers]
    )


def random_tokens(count: int, seed: int, vocabulary: int = VOCABULARY) -> TokenArray:
    """Token ids that are no special ones."""
    return np.random.default_rng(seed).integers(3, vocabulary, count).astype(np.int32)
