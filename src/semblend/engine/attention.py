"""Attention over virtual sequences, registered with transformers as an implementation.

The model is loaded with ``attn_implementation="semblend_paged"``. Each layer then calls
:func:`paged_attention`, which finds the pass's :class:`SequenceBatch` in its keyword arguments. No
model code is replaced.

In each layer, the K/V of *all* rows is written to the pool first, so that later segments see
earlier ones. Then every segment attends. A segment of queries [s, e) sees keys [0, e) with a
bottom-right causal mask. Stock kernels only offer a top-left mask, so the work is done in two
parts: everything before s without a mask, [s, e) with the top-left mask, merged by their
log-sum-exps. The merge is exact and no mask is ever built. In the first part, query heads that
share a K/V head are folded into rows, so each key is read once per group. Where a layer's window
hides some of the keys, `windowed_attention` attends instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from semblend.core.errors import UnsupportedModelError
from semblend.engine.batch import BatchSequence, SequenceBatch
from semblend.engine.windowed_attention import windowed

ATTENTION_NAME = "semblend_paged"
BATCH_ARGUMENT = "semblend_batch"


def register_attention() -> str:
    """Register the implementation with transformers and return its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    return ATTENTION_NAME


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write this pass's K/V into the pool and attend per sequence.

    Parameters
    ----------
    query
        Shape [1, query_heads, rows, head_dim], rotated.
    key, value
        Shape [1, kv_heads, rows, head_dim], `key` rotated.
    attention_mask
        Always None: transformers builds masks only for implementations that ask.

    Returns
    -------
    tuple
        Output of shape [1, rows, query_heads, head_dim], and no weights.
    """
    batch = kwargs.get(BATCH_ARGUMENT)
    if not isinstance(batch, SequenceBatch):
        raise UnsupportedModelError(
            f"{type(module).__name__} does not pass keyword arguments to its attention; "
            "segmented prefill needs a model that does"
        )
    if attention_mask is not None or dropout or kwargs.get("softcap"):
        raise UnsupportedModelError(
            f"{type(module).__name__} asks for a mask, dropout or soft-capped logits in attention"
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    queries, keys, values = (
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
    )
    write_rows(batch, layer, keys, values)
    if batch.hook is not None:
        batch.hook(layer, queries, keys, values)
    window = kwargs.get("sliding_window")
    scale = scaling or query.shape[-1] ** -0.5
    out = attend(batch, layer, queries, keys, values, scale, window=window)
    return out[None], None


def write_rows(batch: SequenceBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write rows [rows, kv_heads, head_dim] to the slots given by the batch."""
    pool_keys, pool_values = batch.pool.keys(layer), batch.pool.values(layer)
    for row, slot, length in batch.writes:
        pool_keys[slot : slot + length] = keys[row : row + length]
        pool_values[slot : slot + length] = values[row : row + length]


def attend(
    batch: SequenceBatch,
    layer: int,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of all segments, [rows, query_heads, head_dim]. K/V must already be written.

    A query sees `window` tokens, itself included, or all before it.
    """
    groups = queries.shape[1] // keys.shape[1]
    if len(batch.sequences) == 1:
        return _sequence(
            batch, batch.sequences[0], layer, queries, keys, values, groups, scale, window
        )
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    for sequence in batch.sequences:
        rows = slice(sequence.row, sequence.row + sequence.length)
        out[rows] = _sequence(
            batch, sequence, layer, queries[rows], keys[rows], values[rows], groups, scale, window
        )
    return out


def _sequence(
    batch: SequenceBatch,
    sequence: BatchSequence,
    layer: int,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    groups: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """One virtual sequence, [length, query_heads, head_dim], over its past and itself."""
    length, heads, dim = queries.shape
    if window is not None and sequence.seen > window:
        keys, values = _with_past(batch, sequence, layer, keys, values, window)
        return windowed(queries, keys, values, window=window, scale=scale)
    kv_heads = heads // groups
    # [kv_heads, groups, length, head_dim]: each K/V head is one batch entry for the kernel.
    grouped = queries.view(length, kv_heads, groups, dim).permute(1, 2, 0, 3)
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    if length > 1:
        own_keys, own_values = keys.transpose(0, 1)[:, None], values.transpose(0, 1)[:, None]
        shared = (kv_heads, groups, length, dim)
        parts.append(
            flash(
                grouped,
                own_keys.expand(shared),
                own_values.expand(shared),
                causal=True,
                scale=scale,
            )
        )
    if sequence.past:
        folded = grouped.reshape(kv_heads, 1, groups * length, dim)
        for past_keys, past_values in _past(batch, sequence, layer):
            out, lse = flash(folded, past_keys, past_values, causal=False, scale=scale)
            parts.append((out.view(grouped.shape), lse.view(grouped.shape[:3])))
    out, lse = parts[0]
    for other, other_lse in parts[1:]:
        out, lse = merge(out, lse, other, other_lse)
    return out.permute(2, 0, 1, 3).reshape(length, heads, dim).to(queries.dtype)


def _with_past(
    batch: SequenceBatch,
    sequence: BatchSequence,
    layer: int,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V that some query of a sequence sees, [tokens, kv_heads, head_dim] each."""
    own = [] if sequence.length == 1 else [(keys, values)]  # one row is the last of its past
    hidden = max(0, sequence.seen - sequence.length - window + 1)
    past = [
        (k[:, 0].transpose(0, 1), v[:, 0].transpose(0, 1))
        for k, v in _past(batch, sequence, layer, first=hidden)
    ]
    k, v = (torch.cat(each) for each in zip(*past, *own, strict=True))
    return k, v


def _past(
    batch: SequenceBatch, sequence: BatchSequence, layer: int, first: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V before the sequence, from position `first` on, in one or more parts.

    Each is [kv_heads, 1, tokens, head_dim].
    """
    keys, values = batch.pool.keys(layer), batch.pool.values(layer)
    if sequence.gather is not None:
        slots = sequence.gather[first:]
        pieces = [(keys.index_select(0, slots), values.index_select(0, slots))]
    else:
        pieces = [
            (keys[slot : slot + length], values[slot : slot + length])
            for slot, length in _from(sequence.past, first)
        ]
    return [(k.transpose(0, 1)[:, None], v.transpose(0, 1)[:, None]) for k, v in pieces]


def _from(runs: tuple[tuple[int, int], ...], first: int) -> Iterator[tuple[int, int]]:
    """Runs of slots without their first tokens."""
    for slot, length in runs:
        if length > first:
            yield slot + first, length - first
        first = max(0, first - length)


def merge(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine attention over two disjoint sets of keys.

    Outputs are [..., head_dim], log-sum-exps [...]. The softmax over the union weighs the second
    set by exp(other_lse) / (exp(lse) + exp(other_lse)), which is a sigmoid. Computed in float32
    whatever the model's type, so parts are rounded once and not at every merge.
    """
    weight = torch.sigmoid(other_lse - lse).float().unsqueeze(-1)
    return torch.lerp(out.float(), other.float(), weight), torch.logaddexp(lse, other_lse)


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The device's fused attention kernel, with its log-sum-exp.

    Shapes are [batch, heads, queries, head_dim] and [batch, heads, keys, head_dim]. Returns the
    output and the log-sum-exp [batch, heads, queries]. The public SDPA call hides the log-sum-exp,
    so this uses the operators it dispatches to.
    """
    aten = torch.ops.aten
    if query.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
    elif query.dtype == torch.float32:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scale
        )
    else:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )
    return out, lse[..., : query.shape[2]]
