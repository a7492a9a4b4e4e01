"""An independent float64 model of segmented prefill, written from the mathematics.

No kernels, pages or transformers code: weights are read by name from a state
dict, angles come from the formula, attention is one dense masked softmax. Given
K/V that stands in for some positions, it computes what every other position's
hidden state, K/V and logits must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.plan import Span
from tests.oracles.experts import gated, mixture


@dataclass(frozen=True, kw_only=True)
class OracleResult:
    """Everything in float64."""

    logits: torch.Tensor
    """[tokens, vocabulary]; rows of borrowed positions mean nothing."""
    keys: torch.Tensor
    """[layers, tokens, kv_heads, head_dim], rotated to their positions."""
    values: torch.Tensor
    """[layers, tokens, kv_heads, head_dim]"""


def move_keys(
    keys: torch.Tensor, delta: int, theta: float, width: int | None = None
) -> torch.Tensor:
    """Rotate float64 keys [..., head_dim] by `delta` positions (halves pairing).

    `width` is how many elements of a head rotate; all of them without it.
    """
    if width is not None and width < keys.shape[-1]:
        turned = move_keys(keys[..., :width], delta, theta)
        return torch.cat((turned, keys[..., width:]), dim=-1)
    half = keys.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = torch.cos(delta * frequency), torch.sin(delta * frequency)
    first, second = keys[..., :half], keys[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def lent_to(
    spans: Iterable[Span],
    lent: Mapping[str, torch.Tensor],
    theta: float,
    width: int | None = None,
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """What spans put in place, by target position, for :func:`segmented_forward`.

    `lent` is each donor's cold K/V, float64 [layers, 2, tokens, kv_heads, head_dim].
    """
    borrowed = {}
    for span in spans:
        keys = move_keys(lent[span.donor_id][:, 0], span.delta, theta, width)
        values = lent[span.donor_id][:, 1]
        for here in range(span.target_start, span.target_end):
            there = here - span.delta
            borrowed[here] = (keys[:, there], values[:, there])
    return borrowed


def segmented_forward(
    model: Any,
    tokens: Iterable[int],
    borrowed: Mapping[int, tuple[torch.Tensor, torch.Tensor]] | None = None,
) -> OracleResult:
    """Compute a prompt in which `borrowed` positions' K/V is given.

    `borrowed[position]` is (keys, values), each [layers, kv_heads, head_dim], already at
    that position. With none this is a cold prefill.
    """
    config = model.config.get_text_config()
    weights = {
        name.replace("model.language_model.", "model."): value.detach().double()
        for name, value in model.state_dict().items()
    }
    ids = torch.as_tensor(list(tokens))
    borrowed = borrowed or {}
    count = len(ids)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    theta = config.rope_parameters["rope_theta"]
    width = rotating(config)
    eps = config.rms_norm_eps
    hidden = weights["model.embed_tokens.weight"][ids]
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    behind = torch.arange(count)[:, None] - torch.arange(count)  # how far a key is
    all_keys, all_values = [], []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        normed = _norm(hidden, weights[prefix + "input_layernorm.weight"], eps)
        query, key = (
            _normed(_linear(normed, weights, f"{prefix}self_attn.{one}_proj"), weights, name, eps)
            for one, name in (
                ("q", f"{prefix}self_attn.q_norm.weight"),
                ("k", f"{prefix}self_attn.k_norm.weight"),
            )
        )
        value = _linear(normed, weights, prefix + "self_attn.v_proj").view(count, kv_heads, dim)
        query, key = query.view(count, heads, dim), key.view(count, kv_heads, dim)
        query = torch.stack([move_keys(query[p], p, theta, width) for p in range(count)])
        key = torch.stack([move_keys(key[p], p, theta, width) for p in range(count)])
        for position, (given_keys, given_values) in borrowed.items():
            key[position], value[position] = given_keys[layer], given_values[layer]
        all_keys.append(key)
        all_values.append(value)
        group = heads // kv_heads
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, dim=1)) / dim**0.5
        seen = visible & (behind < (_window(config, layer) or count))
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = torch.einsum(
            "hqk,khd->qhd", scores.softmax(-1), value.repeat_interleave(group, dim=1)
        )
        hidden = hidden + _linear(mixed.reshape(count, -1), weights, prefix + "self_attn.o_proj")
        normed = _norm(hidden, weights[prefix + "post_attention_layernorm.weight"], eps)
        feed_forward = prefix + "mlp."
        if feed_forward + "experts.down_proj" in weights:
            hidden = hidden + mixture(normed, weights, feed_forward, config)
        else:
            hidden = hidden + gated(normed, weights, feed_forward)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return OracleResult(
        logits=_norm(hidden, weights["model.norm.weight"], eps) @ head.T,
        keys=torch.stack(all_keys),
        values=torch.stack(all_values),
    )


def _window(config: Any, layer: int) -> int | None:
    """How many tokens a layer's query sees with itself; None for all."""
    kinds = getattr(config, "layer_types", None) or []
    if kinds and kinds[layer] != "sliding_attention":
        return None
    if not kinds and getattr(config, "use_sliding_window", True) is False:
        return None
    return getattr(config, "sliding_window", None)


def rotating(config: Any) -> int:
    """How many elements of a head rotate."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(dim * (config.rope_parameters.get("partial_rotary_factor") or 1.0))


def _normed(
    x: torch.Tensor, weights: Mapping[str, torch.Tensor], name: str, eps: float
) -> torch.Tensor:
    """Queries or keys [tokens, heads * head_dim], normed over the width of the weight, if any."""
    weight = weights.get(name)
    if weight is None:
        return x
    return _norm(x.unflatten(-1, (-1, len(weight))), weight, eps).flatten(-2)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _linear(x: torch.Tensor, weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    out = x @ weights[name + ".weight"].T
    bias = weights.get(name + ".bias")
    return out if bias is None else out + bias
