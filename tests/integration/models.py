"""Tiny random models as folders engines can load, made once a session, and plain twins of them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from semblend.core.tokens import TokenArray
from tests.integration.quantised import METHODS, quantise

REFERENCE = Path(__file__).parents[2] / "models" / "semblend-reference-27m"
VOCABULARY = 512
_FOLDER = Path(tempfile.mkdtemp(prefix="semblend-models-"))
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_THETA = 10_000.0
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "one-layer": ("Llama", {"num_hidden_layers": 1}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": _THETA}},
    ),
    "llama-llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
                "rope_theta": _THETA,
            }
        },
    ),
    "llama-yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 1024,
                "rope_theta": _THETA,
            }
        },
    ),
    "llama-dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": _THETA}},
    ),
    "gemma-windows": (
        "Gemma2",
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
        },
    ),
}
REFUSED = ("llama-dynamic", "gemma-windows")
"""Nothing is loaded in these."""

SERVED = tuple(name for name in MODELS if name not in ("one-layer", *REFUSED))
"""One of every architecture and rotary kind that adapters take."""
QUANTISED = tuple(f"llama-{method}" for method in METHODS)
"""The tiny Llama with its weights quantised; any model's name takes the ending."""


@cache
def folder_of(name: str) -> str:
    """The folder of a tiny model; its weights depend on nothing but its name."""
    if name == "reference":
        return str(REFERENCE)
    folder = _FOLDER / name
    base, _, method = name.rpartition("-")
    if method in METHODS:
        quantise(Path(folder_of(base)), folder, method)
    else:
        plain_model(name).save_pretrained(folder)
    return str(folder)


@cache
def plain_model(name: str) -> Any:
    """The same model in plain transformers, float32."""
    if name == "reference":
        return transformers.AutoModelForCausalLM.from_pretrained(
            REFERENCE, dtype=torch.float32
        ).eval()
    kind, changes = MODELS[name]
    transformers.utils.logging.disable_progress_bar()
    config = getattr(transformers, f"{kind}Config")(**{**_SHAPE, **changes})
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def random_tokens(count: int, seed: int) -> TokenArray:
    """Token ids that are no special ones."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).astype(np.int32)


def joined(*parts: TokenArray) -> TokenArray:
    """One prompt of several texts."""
    return np.concatenate(parts)
