"""The kernels between a layer's matrix products, one launch each.

Rounding follows transformers: sums and norms are rounded to the model's type where its modules
round, so results differ only by the order of sums. Rotation is done in fp32 and rounded once.
"""

from __future__ import annotations

import torch

from semblend.core.errors import MissingExtraError
from semblend.engine.cuda.tiled_attention import LayerKv, RowMap
from semblend.kv.rotary_table import RotaryTable

try:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError as error:
    raise MissingExtraError(package="triton", extra="gpu", purpose="Layers on a GPU") from error

_HEADS_EACH = 4
_COLUMNS_EACH = 2048


def add_norm(
    hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of `hidden` + `residual`, and that sum; all [rows, width]."""
    rows, width = hidden.shape
    out = torch.empty_like(hidden)
    total = hidden if residual is None else torch.empty_like(hidden)
    _add_norm[(rows,)](
        hidden,
        hidden if residual is None else residual,
        weight,
        total,
        out,
        epsilon,
        width=width,
        block=triton.next_power_of_2(width),
        adds=residual is not None,
        num_warps=8,
    )
    return out, total


def rotate_and_write(
    qkv: torch.Tensor,
    kv: LayerKv,
    rows: RowMap,
    rotary: RotaryTable,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
) -> torch.Tensor:
    """Rotate queries in place and write K and V to the pool.

    Parameters
    ----------
    qkv
        [rows, (query_heads + 2 * kv_heads) * head_dim].
    norms
        Weights [head_dim] and epsilon of the per-head query and key norms, if any.

    Returns
    -------
    torch.Tensor
        The queries, a view [rows, query_heads, head_dim].
    """
    count, width = qkv.shape
    _, kv_heads, dim = kv.keys.shape
    heads = width // dim
    query_heads = heads - 2 * kv_heads
    query_norm, key_norm, epsilon = norms if norms is not None else (qkv, qkv, 0.0)
    _rotate_and_write[(count, triton.cdiv(heads, _HEADS_EACH))](
        qkv,
        kv.keys,
        kv.values,
        rows.positions,
        rows.slots,
        rotary.cos,
        rotary.sin,
        query_norm,
        key_norm,
        epsilon,
        qkv.stride(0),
        kv.keys.stride(0),
        query_heads=query_heads,
        kv_heads=kv_heads,
        half=dim // 2,
        half_block=triton.next_power_of_2(dim // 2),
        heads_each=_HEADS_EACH,
        has_norms=norms is not None,
        num_warps=1,
    )
    return qkv[:, : query_heads * dim].view(count, query_heads, dim)


def silu_product(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [rows, 2 * width], gate first: [rows, width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    _silu_product[(rows, triton.cdiv(width, _COLUMNS_EACH))](
        gate_up, out, width=width, block=_COLUMNS_EACH, num_warps=8
    )
    return out


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm(  # type: ignore[no-untyped-def]
    hidden,
    residual,
    weight,
    total,
    target,
    epsilon,
    width: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
):
    column = tl.arange(0, block)
    live = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    value = tl.load(hidden + at, mask=live, other=0.0)
    if adds:
        value = (value.to(tl.float32) + tl.load(residual + at, mask=live, other=0.0)).to(
            value.dtype
        )
        tl.store(total + at, value, mask=live)
    wide = value.to(tl.float32)
    inverse = tl.math.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    normal = (wide * inverse).to(value.dtype).to(tl.float32)
    out = normal * tl.load(weight + column, mask=live, other=0.0).to(tl.float32)
    tl.store(target + at, out.to(value.dtype), mask=live)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rotate_and_write(  # type: ignore[no-untyped-def]
    qkv,
    keys,
    values,
    positions,
    slots,
    cos_table,
    sin_table,
    query_norm,
    key_norm,
    epsilon,
    row_stride,
    slot_stride,
    query_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    half_block: tl.constexpr,
    heads_each: tl.constexpr,
    has_norms: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    head = tl.program_id(1) * heads_each + tl.arange(0, heads_each)
    pair = tl.arange(0, half_block)
    is_query = head < query_heads
    is_value = head >= query_heads + kv_heads
    is_key = (head >= query_heads) & (head < query_heads + kv_heads)
    exists = head < query_heads + 2 * kv_heads
    inside = pair < half
    live = exists[:, None] & inside[None, :]

    read = qkv + row * row_stride + head[:, None] * (2 * half) + pair[None, :]
    first = tl.load(read, mask=live, other=0.0)
    second = tl.load(read + half, mask=live, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    if has_norms:
        mean = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half)
        inverse = tl.math.rsqrt(mean + epsilon)[:, None]
        q_first = tl.load(query_norm + pair, mask=inside, other=0.0).to(tl.float32)
        q_second = tl.load(query_norm + half + pair, mask=inside, other=0.0).to(tl.float32)
        k_first = tl.load(key_norm + pair, mask=inside, other=0.0).to(tl.float32)
        k_second = tl.load(key_norm + half + pair, mask=inside, other=0.0).to(tl.float32)
        by_first = tl.where(is_query[:, None], q_first[None, :], k_first[None, :])
        by_second = tl.where(is_query[:, None], q_second[None, :], k_second[None, :])
        a = ((a * inverse).to(first.dtype).to(tl.float32) * by_first).to(first.dtype)
        b = ((b * inverse).to(first.dtype).to(tl.float32) * by_second).to(first.dtype)
        a, b = a.to(tl.float32), b.to(tl.float32)
    cos = tl.load(cos_table + position * half + pair, mask=inside, other=1.0)[None, :]
    sin = tl.load(sin_table + position * half + pair, mask=inside, other=0.0)[None, :]
    turned_first = (a * cos - b * sin).to(first.dtype)
    turned_second = (b * cos + a * sin).to(first.dtype)

    query_live = live & is_query[:, None]
    tl.store(read, turned_first, mask=query_live)
    tl.store(read + half, turned_second, mask=query_live)
    # A padding row has no slot.
    owned = (head * 0 + slot) >= 0
    key_live = live & (is_key & owned)[:, None]
    key_at = slot * slot_stride + (head[:, None] - query_heads) * (2 * half) + pair[None, :]
    tl.store(keys + key_at, turned_first, mask=key_live)
    tl.store(keys + key_at + half, turned_second, mask=key_live)
    value_live = live & (is_value & owned)[:, None]
    value_at = key_at - kv_heads * (2 * half)
    tl.store(values + value_at, first, mask=value_live)
    tl.store(values + value_at + half, second, mask=value_live)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _silu_product(  # type: ignore[no-untyped-def]
    gate_up, target, width: tl.constexpr, block: tl.constexpr
):
    column = tl.program_id(1) * block + tl.arange(0, block)
    live = column < width
    row = tl.program_id(0).to(tl.int64)
    read = gate_up + row * (2 * width) + column
    gate = tl.load(read, mask=live, other=0.0)
    up = tl.load(read + width, mask=live, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    act = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(target + row * width + column, (act * up).to(gate.dtype), mask=live)
