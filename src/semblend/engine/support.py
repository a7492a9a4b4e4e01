"""The models segmented prefill is proven for. All others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend.core.architectures import ARCHITECTURES, EngineName, Trait, model_types
from semblend.core.errors import UnsupportedModelError

SUPPORTED_TYPES = model_types(EngineName.EMBEDDED)
"""`model_type` of the configurations in the test matrix."""
WINDOWED_TYPES = frozenset(
    row.model_type
    for row in ARCHITECTURES
    if EngineName.EMBEDDED in row.engines and Trait.WINDOWS in row.traits
)
"""Those among them that ran with sliding windows."""


def _get(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _rope(config: Any) -> dict[str, Any]:
    rope = _get(config, "rope_parameters") or _get(config, "rope_scaling") or {}
    return rope if isinstance(rope, dict) else {}


def windows_of(config: Any) -> tuple[int | None, ...]:
    """Tokens a query of each layer sees, itself included; None for all before it."""
    window, layers = _get(config, "sliding_window"), int(_get(config, "num_hidden_layers") or 0)
    kinds = _get(config, "layer_types")
    if kinds is not None:
        return tuple(window if "sliding" in kind else None for kind in kinds)
    # Qwen configurations have a window that `use_sliding_window` switches; Mistral's has no switch.
    on = bool(window) and _get(config, "use_sliding_window") is not False
    return (window if on else None,) * layers


def _has_unproven_window(config: Any) -> bool:
    windows = set(windows_of(config)) != {None}
    return windows and _get(config, "model_type") not in WINDOWED_TYPES


def _has_linear_attention(config: Any) -> bool:
    kinds = _get(config, "layer_types") or ()
    return any(kind not in ("full_attention", "sliding_attention") for kind in kinds) or bool(
        _get(config, "linear_num_key_heads")
    )


_REFUSED: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("an encoder-decoder", lambda c: bool(_get(c, "is_encoder_decoder"))),
    ("M-RoPE", lambda c: "mrope_section" in _rope(c)),
    ("multi-head latent attention", lambda c: bool(_get(c, "kv_lora_rank"))),
    ("linear or state-space layers", _has_linear_attention),
    ("sliding-window attention", _has_unproven_window),
    (
        "logit soft-capping in attention",
        lambda c: bool(_get(c, "attn_logit_softcapping") or _get(c, "attention_logit_cap")),
    ),
    ("chunked attention", lambda c: bool(_get(c, "attention_chunk_size"))),
    ("a quantised checkpoint", lambda c: bool(_get(c, "quantization_config"))),
    ("ALiBi positions", lambda c: bool(_get(c, "alibi"))),
)


def check_supported(config: Any) -> None:
    """Accept a supported configuration.

    Raises
    ------
    UnsupportedModelError
        Naming the unsupported feature or model type.
    """
    kind = _get(config, "model_type") or type(config).__name__
    for feature, present in _REFUSED:
        if present(config):
            raise UnsupportedModelError(
                f"model type {kind!r}: {feature} is not supported by segmented prefill"
            )
    if kind not in SUPPORTED_TYPES:
        raise UnsupportedModelError(
            f"model type {kind!r} is not supported; expected one of {', '.join(SUPPORTED_TYPES)}"
        )
