"""The models our GPU passes support. All others run through transformers.

Weights do not reveal what a forward pass does: a model with an extra multiplier before a sum has
the same modules and computes something else. So models are identified by class, and still refused
if they hold a parameter that the passes would not use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from semblend.engine.support import windows_of
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable

WIDEST_HEADS = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 64}
"""Largest head size for which tiles were tested. Larger ones may not fit on a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedArchitecture:
    """A transformers class whose forward :class:`FusedForward` implements."""

    model_class: str
    """Fully qualified, because a subclass may compute anything."""
    head_norms: bool = False
    """Whether queries and keys are normalised per head."""


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
"""Add a row only when `tests/engine/gpu_interpreter.py` compares it with transformers."""

_PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_NORMS = frozenset({"input_layernorm.weight", "post_attention_layernorm.weight"})
_HEAD_NORMS = frozenset({"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
_WEIGHTS = frozenset(f"{name}.weight" for name in _PROJECTIONS)
_BIASES = frozenset(f"{name}.bias" for name in _PROJECTIONS)


def fits(model: Any, rotary: RotaryTable) -> bool:
    """Whether :class:`FusedForward` computes what this model does."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    known = next((one for one in FUSED if one.model_class == name), None)
    if known is None:
        return False
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        config.hidden_act == "silu"
        and set(windows_of(config)) == {None}
        and rotary.pairing is Pairing.NEOX
        and rotary.rotary_dim == head_dim
        and head_dim <= WIDEST_HEADS.get(next(model.parameters()).dtype, 0)
        and model.lm_head.bias is None
        and all(_is_plain(layer, known) for layer in model.model.layers)
        and len({parameter.dtype for parameter in model.parameters()}) == 1
    )


def _is_plain(layer: Any, known: FusedArchitecture) -> bool:
    """Whether a layer holds what the passes use and nothing else: no adapter, no extra norm."""
    names = {name for name, _ in layer.named_parameters()}
    needed = _NORMS | _WEIGHTS | (_HEAD_NORMS if known.head_norms else frozenset())
    biased = {bool(names & {f"self_attn.{one}_proj.bias"}) for one in "qkv"}
    return needed <= names <= needed | _BIASES and len(biased) == 1
