"""Tiny random models of every rotary kind and pairing that transformers has."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

POSITIONS = 96

DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 3.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model type with rotary parameters, and what its spec must say."""

    name: str
    model_type: str
    parameters: dict[str, Any]
    interleaved: bool = False
    rotary_dim: int = 16
    extra: tuple[tuple[str, Any], ...] = ()

    def config(self, **changes: Any) -> Any:
        sizes: dict[str, Any] = {
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": dict(self.parameters),
        }
        sizes.update(dict(self.extra) | changes)
        return AutoConfig.for_model(self.model_type, **sizes)

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(self.config(), dtype=dtype)
        # Keys as large as a trained model's, so that a wrong rotation shows.
        for name, weight in model.named_parameters():
            if "k_proj" in name or "query_key_value" in name:
                torch.nn.init.normal_(weight, std=0.3)
        return model.eval()


FAMILIES = (
    Family(name="llama-default", model_type="llama", parameters=DEFAULT),
    Family(name="llama-linear", model_type="llama", parameters=LINEAR),
    Family(name="llama-llama3", model_type="llama", parameters=LLAMA3),
    Family(name="llama-yarn", model_type="llama", parameters=YARN),
    Family(
        name="llama-yarn-mscale",
        model_type="llama",
        parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False},
    ),
    Family(
        name="llama-yarn-stated",
        model_type="llama",
        parameters={**YARN, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0},
    ),
    Family(name="qwen2", model_type="qwen2", parameters={**DEFAULT, "rope_theta": 1e6}),
    Family(name="qwen3-yarn", model_type="qwen3", parameters=YARN),
    Family(
        name="mistral",
        model_type="mistral",
        parameters=DEFAULT,
        extra=(("sliding_window", None),),
    ),
    Family(
        name="stablelm-partial",
        model_type="stablelm",
        parameters={**DEFAULT, "partial_rotary_factor": 0.25},
        rotary_dim=4,
    ),
    Family(
        name="phi-partial",
        model_type="phi",
        parameters={**DEFAULT, "partial_rotary_factor": 0.5},
        rotary_dim=8,
    ),
    Family(
        name="gpt-neox-partial",
        model_type="gpt_neox",
        parameters={**DEFAULT, "partial_rotary_factor": 0.25},
        rotary_dim=4,
    ),
    Family(name="cohere", model_type="cohere", parameters=DEFAULT, interleaved=True),
    Family(name="cohere-yarn", model_type="cohere", parameters=YARN, interleaved=True),
    Family(
        name="glm-partial",
        model_type="glm",
        parameters={**DEFAULT, "partial_rotary_factor": 0.5},
        interleaved=True,
        rotary_dim=8,
    ),
    Family(name="ernie", model_type="ernie4_5", parameters=DEFAULT, interleaved=True),
    Family(name="helium", model_type="helium", parameters=DEFAULT, interleaved=True),
)

GPTJ = Family(
    name="gptj",
    model_type="gptj",
    parameters={},
    interleaved=True,
    rotary_dim=8,
    extra=(("n_embd", 64), ("n_head", 4), ("n_layer", 2), ("rotary_dim", 8), ("n_positions", 96)),
)
"""Has no rotary module: its rows come from the spec alone."""


def rotary_module(model: Any) -> Any:
    """The model's own rotary module."""
    base = getattr(model, "model", None) or model.gpt_neox
    return base.rotary_emb


def apply_rotary(model: Any) -> Any:
    """The model's own function that rotates queries and keys."""
    return importlib.import_module(type(model).__module__).apply_rotary_pos_emb
