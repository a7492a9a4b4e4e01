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
from tests.integration.vision import image_tokens, save_processor

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
_WINDOWS: dict[str, Any] = {
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_LATENT: dict[str, Any] = {
    # vLLM's kernels for CPUs take rows of 512 and 64 numbers only.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
_SIGMOID_ROUTER = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
_LATENT_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "rope_theta": _THETA,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}


def _longrope(trained: int) -> dict[str, Any]:
    """Frequencies of their own for long prompts; engines of the tests take up to 2,048 tokens."""
    return {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": trained,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": _THETA,
            "short_factor": [1.0 + 0.02 * pair for pair in range(16)],
            "long_factor": [1.0 + 0.5 * pair for pair in range(16)],
            "original_max_position_embeddings": trained,
        },
    }


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "one-layer": ("Llama", {"num_hidden_layers": 1}),
    "even": ("Llama", {"num_hidden_layers": 1}),
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
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 2.0,
                "rope_theta": _THETA,
                "max_trained_positions": 1024,  # vLLM's word
            }
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "glm4-moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
    ),
    "minimax-m2": (
        "MiniMaxM2",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rotary_dim": 16,
            # Checkpoints say "sigmoid", which vLLM has no router for on a CPU.
            "scoring_func": "softmax",
            "use_routing_bias": True,
        },
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VL",
        {
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [4, 6, 6],
                "rope_theta": _THETA,
            },
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 128,
                "fullatt_block_indexes": [0],
            },
        },
    ),
    "qwen3-vl": (
        "Qwen3VL",
        {
            "rope_parameters": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],
                "rope_theta": _THETA,
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 128,
                "deepstack_visual_indexes": [0],
            },
        },
    ),
    "phi3-short": ("Phi3", _longrope(trained=2048)),
    "phi3-long": ("Phi3", _longrope(trained=512)),
    # As Llama, but for multipliers that no weight shows.
    "granite": ("Granite", {"residual_multiplier": 0.2, "attention_multiplier": 0.1}),
    "mistral-windows": ("Mistral", {"sliding_window": 64}),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 32, "tie_word_embeddings": True, **_WINDOWS}),
    "gemma3": (
        "Gemma3",
        {
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": _THETA},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
            **_WINDOWS,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 1024,
                "rope_theta": _THETA,
            },
            **_WINDOWS,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            "q_lora_rank": None,
            "topk_method": "greedy",
            "rope_parameters": _LATENT_YARN,
            "initializer_range": 0.1,
            **_LATENT,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            "q_lora_rank": 48,
            "rope_parameters": _LATENT_YARN,
            **_SIGMOID_ROUTER,
            "initializer_range": 0.1,
            **_LATENT,
        },
    ),
    "glm-flash": (
        "Glm4MoeLite",
        {"q_lora_rank": 48, "initializer_range": 0.1, **_SIGMOID_ROUTER, **_LATENT},
    ),
}
REFUSED = ("granite", "mistral-windows")
"""Nothing is loaded in these."""

SERVED = tuple(name for name in MODELS if name not in ("one-layer", "even", *REFUSED))
"""One of every architecture and rotary kind that adapters take."""
KV_QUANTISED = ("llama-fp8kv", "llama-fp8heads")
"""The tiny Llama with scales for an fp8 K/V cache, one a tensor or one a head."""
QUANTISED = tuple(name for method in METHODS if (name := f"llama-{method}") not in KV_QUANTISED)
"""The tiny Llama with its weights quantised; any model's name takes the ending."""


def architecture_of(name: str) -> str:
    """What `architectures` of a tiny model's configuration says."""
    return f"{MODELS[name][0]}For{'ConditionalGeneration' if reads_images(name) else 'CausalLM'}"


def reads_images(name: str) -> bool:
    """Whether a model is one that text is only a part of what it reads."""
    return name in MODELS and "vision_config" in MODELS[name][1]


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
        if reads_images(name):
            save_processor(folder, MODELS[name][0], VOCABULARY)
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
    text = "Text" if kind == "Gemma3" else ""
    make = getattr(transformers, f"{kind}{text}Config")
    shape = {**_SHAPE, **changes}
    if "vision_config" in shape:
        vision = shape.pop("vision_config")
        config = make(text_config=shape, vision_config=vision, **image_tokens(VOCABULARY))
    else:
        config = make(**shape)
    torch.manual_seed(7)
    model = getattr(transformers, architecture_of(name))(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.1)
    if name == "even":
        _even_out(model)
    return model


@torch.no_grad()
def _even_out(model: Any) -> None:
    """Embeddings of one size and norms that only scale: its one layer can be its own drafter."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
    embeddings = model.get_input_embeddings().weight
    embeddings[model.config.pad_token_id].normal_()  # vLLM drafts it where it has no draft
    embeddings.div_(embeddings.pow(2).mean(-1, keepdim=True).sqrt())


def random_tokens(count: int, seed: int) -> TokenArray:
    """Token ids that are no special ones."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).astype(np.int32)


def joined(*parts: TokenArray) -> TokenArray:
    """One prompt of several texts."""
    return np.concatenate(parts)
