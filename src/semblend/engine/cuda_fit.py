"""Which models the GPU's own passes compute: those of a table; all others go through transformers.

What a forward does cannot be seen from its weights: a model with another multiplier in front of a
sum has the same modules and computes something else. So a model is known by its class, and is
still refused if it holds a parameter that the passes would not use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable

WIDEST_HEADS = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 64}
"""Numbers of a head up to which tiles were run: wider ones may not fit into a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedArchitecture:
    """One class of transformers whose forward :class:`FusedForward` computes."""

    model_class: str
    """In full: a subclass of it may compute anything."""
    head_norms: bool = False
    """Whether queries and keys are normalised head by head."""


FUSED = (
    FusedArchitecture(model_class="transformers.models.llama.modeling_llama.LlamaForCausalLM"),
    FusedArchitecture(
        model_class="transformers.models.mistral.modeling_mistral.MistralForCausalLM"
    ),
    FusedArchitecture(model_class="transformers.models.qwen2.modeling_qwen2.Qwen2ForCausalLM"),
    FusedArchitecture(
        model_class="transformers.models.qwen3.modeling_qwen3.Qwen3ForCausalLM", head_norms=True
    ),
)
"""A row joins when `tests/engine/gpu_interpreter.py` compares it with transformers."""

_PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_NORMS = frozenset({"input_layernorm.weight", "post_attention_layernorm.weight"})
_HEAD_NORMS = frozenset({"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
_WEIGHTS = frozenset(f"{name}.weight" for name in _PROJECTIONS)
_BIASES = frozenset(f"{name}.bias" for name in _PROJECTIONS)


def fits(model: Any, rotary: RotaryTable) -> bool:
    """Whether the passes of :class:`FusedForward` are those of this model."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    known = next((one for one in FUSED if one.model_class == name), None)
    if known is None:
        return False
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        config.hidden_act == "silu"
        and rotary.pairing is Pairing.NEOX
        and rotary.rotary_dim == head_dim
        and head_dim <= WIDEST_HEADS.get(next(model.parameters()).dtype, 0)
        and model.lm_head.bias is None
        and all(_is_plain(layer, known) for layer in model.model.layers)
        and len({parameter.dtype for parameter in model.parameters()}) == 1
    )


def _is_plain(layer: Any, known: FusedArchitecture) -> bool:
    """Whether a layer holds what the passes use and nothing else: no adapter, no further norm."""
    names = {name for name, _ in layer.named_parameters()}
    needed = _NORMS | _WEIGHTS | (_HEAD_NORMS if known.head_norms else frozenset())
    biased = {bool(names & {f"self_attn.{one}_proj.bias"}) for one in "qkv"}
    return needed <= names <= needed | _BIASES and len(biased) == 1
