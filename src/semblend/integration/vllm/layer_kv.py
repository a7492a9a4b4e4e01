"""What an attention layer of vLLM keeps per token, and how its own backend writes it.

Most keep K and V. With multi-head latent attention (MLA) a layer keeps one row [latent, k_pe], from
which both are made; the widths are those the model's configuration declares.
"""

from __future__ import annotations

from typing import Any

import torch


def is_latent(layer: Any) -> bool:
    """Whether a layer keeps rows of latents."""
    return getattr(layer, "kv_lora_rank", None) is not None


def parts_of(layer: Any) -> int:
    """2 for K and V, 1 for rows of latents (see `kv.layout`)."""
    return 1 if is_latent(layer) else 2


def latent_dim(layer: Any) -> int:
    """Numbers of a head before those that rotate."""
    return int(layer.kv_lora_rank) if is_latent(layer) else 0


def window_of(layer: Any) -> int | None:
    """Tokens a query of this layer sees, itself included; None for all before it."""
    window = getattr(layer, "sliding_window", None)
    return None if window is None else int(window)


def update_cache(
    layer: Any,
    keys: torch.Tensor,
    values: torch.Tensor | None,
    cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write tokens, [tokens, kv_heads, head_dim], with the backend's own code.

    `values` is None for a layer with one part.
    """
    if not is_latent(layer):
        layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)
        return
    width = latent_dim(layer)
    layer.impl.do_kv_cache_update(
        keys[:, 0, :width].contiguous(),
        keys[:, :, width:].contiguous(),
        cache,
        slots,
        layer.kv_cache_dtype,
        layer._k_scale,
    )
