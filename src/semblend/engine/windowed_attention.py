"""Attention of a virtual sequence in a layer with a sliding window.

A query sees itself and the `window` - 1 tokens before it. No stock kernel offers that mask at an
offset, so it is built, for a few queries and the keys they see.
"""

from __future__ import annotations

import torch

ROWS_AT_ONCE = 256
"""Queries per call: bounds the mask, and the keys that only some of the queries see."""


def windowed(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    window: int,
    scale: float,
) -> torch.Tensor:
    """Attention of the last tokens over all that some of them see, [rows, query_heads, head_dim].

    Parameters
    ----------
    queries
        Shape [rows, query_heads, head_dim]: the last rows of the sequence.
    keys, values
        Shape [tokens, kv_heads, head_dim]: those before the rows, as far as needed, and the rows'.
    """
    rows, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    before = len(keys) - rows
    grouped = queries.view(rows, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    parts = []
    for start in range(0, rows, ROWS_AT_ONCE):
        end = min(rows, start + ROWS_AT_ONCE)
        first, last = max(0, before + start - window + 1), before + end
        asking = torch.arange(before + start, last, device=keys.device)[:, None]
        seen = torch.arange(first, last, device=keys.device)[None]
        shape = (kv_heads, heads // kv_heads, last - first, dim)
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped[:, :, start:end],
            keys[first:last].transpose(0, 1)[:, None].expand(shape),
            values[first:last].transpose(0, 1)[:, None].expand(shape),
            attn_mask=(seen <= asking) & (seen > asking - window),
            scale=scale,
        )
        parts.append(out)
    whole = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
    return whole.permute(2, 0, 1, 3).reshape(rows, heads, dim)
