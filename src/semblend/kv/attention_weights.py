"""Attention weights for probes: which keys a prompt's last queries attend to."""

from __future__ import annotations

import torch

TAIL_QUERIES = 4
"""The last queries have read the question and are about to answer it. On the reference model they
find the evidence better than all of the question's tokens together (docs/quality.md).
"""


def attention_weights(
    query: torch.Tensor, keys: torch.Tensor, *, first: int, window: int | None = None
) -> torch.Tensor:
    """Causal attention weights of query rows from position `first` on: [heads, rows, keys].

    `query` is [rows, query_heads, head_dim], `keys` [keys, kv_heads, head_dim], both rotated. A
    query sees `window` tokens, itself included, or all before it. The scale is the usual one.
    Scores only rank blocks, so a model's own scale, soft caps and sinks matter little.
    """
    rows, heads, dim = query.shape
    groups = heads // keys.shape[1]
    grouped = query.view(rows, keys.shape[1], groups, dim).permute(1, 2, 0, 3).float()
    scores = grouped @ keys.permute(1, 2, 0)[:, None].float() * dim**-0.5
    positions = torch.arange(keys.shape[0], device=keys.device)
    asking = torch.arange(first, first + rows, device=keys.device)[:, None]
    hidden = positions[None] > asking
    if window is not None:
        hidden |= positions[None] <= asking - window
    weights: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return weights.flatten(0, 1)
