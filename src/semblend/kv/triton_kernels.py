"""The kernel that moves K/V: gather, rotate, shift, scatter over layers, spans and sources.

The work is moving bytes, and the kernel is designed for that. A program owns a tile of (token,
head) rows. It reads slots, positions and rotary rows once, keeps them in registers and processes
several layers with them, so that per layer it reads and writes only K and V, in 16-byte accesses.
Layer addresses come from a table, so any engine's pool can be a destination. Semantics are those of
`kv.torch_copy`; `kv.triton_copy` launches it.
"""

from __future__ import annotations

from semblend.core.errors import MissingExtraError

try:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError as error:
    raise MissingExtraError(
        package="triton", extra="gpu", purpose="Copying K/V on a GPU"
    ) from error


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _decoded(stored, fp8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers in fp32; fp8 is kept in bytes (see `kv.numbers`).

    By hand, because Triton's own conversion needs a newer card and its interpreter carries wrongly.
    """
    if fp8:
        bits = stored.to(tl.int32)
        size = bits & 0x7F
        whole = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        numbers = tl.where(size < 8, size.to(tl.float32) * 0.001953125, whole)
        return tl.where(bits >= 0x80, -numbers, numbers)
    return stored.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _encoded(numbers, like, clipped, fits, fp8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers as they are stored. What fp8 cannot hold is clipped and counted."""
    if fp8:
        tl.atomic_add(clipped, tl.sum((tl.abs(numbers) > 448.0).to(tl.int64) * fits.to(tl.int64)))
        size = tl.minimum(tl.abs(numbers), 448.0)
        bits = size.to(tl.int32, bitcast=True)
        # Round to even: 23 bits of fraction become 3; below 2**-6, steps of 2**-9.
        whole = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
        small = ((size * 512.0 + 8388608.0) - 8388608.0).to(tl.int32)
        code = tl.where(size < 0.015625, small, whole)
        return tl.where(numbers < 0.0, code | 0x80, code).to(tl.uint8)
    return numbers.to(like.dtype)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _turn(  # type: ignore[no-untyped-def]
    first, second, cos, sin, moves, clipped, mask, fp8: tl.constexpr
):
    """Rotate a pair in fp32. Rows that do not move keep their bits (1 * x loses -0.0 and NaN)."""
    a, b = _decoded(first, fp8), _decoded(second, fp8)
    counted = moves & mask
    turned_first = _encoded(a * cos - b * sin, first, clipped, counted, fp8)
    turned_second = _encoded(b * cos + a * sin, second, clipped, counted, fp8)
    return tl.where(moves, turned_first, first), tl.where(moves, turned_second, second)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _mean(rows, share, depth_stride, columns, mask):  # type: ignore[no-untyped-def]
    """A table's mean, interpolated linearly between two of its depths."""
    low = tl.load(rows + columns, mask=mask, other=0.0)
    high = tl.load(rows + depth_stride + columns, mask=mask, other=0.0)
    return low + share * (high - low)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _away(  # type: ignore[no-untyped-def]
    means, after, after_share, before, before_share, depth_stride, columns, mask
):
    """The difference between the means of two depths."""
    new = _mean(means + after, after_share, depth_stride, columns, mask)
    return new - _mean(means + before, before_share, depth_stride, columns, mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add(numbers, away, shifts):  # type: ignore[no-untyped-def]
    """Shift numbers in fp32. Rows that are not shifted keep their bits."""
    return tl.where(shifts, (numbers.to(tl.float32) + away).to(numbers.dtype), numbers)


# These differ from call to call, and compiling a kernel for each would stall requests.
_PLAIN = (
    "tokens",
    "sources",
    "table_layers",
    "first_layer",
    "layers",
    "source_ahead",
    "layers_each",
    "depths",
    "same_depth",
)


@triton.jit(do_not_specialize=_PLAIN)  # type: ignore[untyped-decorator,unused-ignore]
def copy_rotate(  # type: ignore[no-untyped-def]
    source,
    target,
    cos_table,
    sin_table,
    means,
    token_depths,
    index,
    clipped,
    tokens,
    sources,
    table_layers,
    first_layer,
    layers,
    source_ahead,
    layers_each,
    source_block_stride,
    source_token_stride,
    source_head_stride,
    source_stride,
    target_block_stride,
    target_token_stride,
    target_head_stride,
    target_stride,
    depths,
    same_depth,
    source_block: tl.constexpr,
    target_block: tl.constexpr,
    layered: tl.constexpr,
    shifting: tl.constexpr,
    parts: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    offset: tl.constexpr,
    half: tl.constexpr,
    interleaved: tl.constexpr,
    half_block: tl.constexpr,
    head_block: tl.constexpr,
    rest_block: tl.constexpr,
    tile_rows: tl.constexpr,
    alignment: tl.constexpr,
    fp8: tl.constexpr,
):
    """Process a program's rows through its layers. `kv.triton_copy` documents the arguments."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token = row // heads
    head = row % heads
    live = token < tokens
    number = tl.load(index + token, mask=live, other=0)
    source_slot = tl.load(index + tokens + token, mask=live, other=0)
    target_slot = tl.load(index + 2 * tokens + token, mask=live, other=0)
    source_position = tl.load(index + 3 * tokens + token, mask=live, other=0)
    target_position = tl.load(index + 4 * tokens + token, mask=live, other=0)
    by_source = index + 5 * tokens
    shapes = by_source + number
    distance = tl.multiple_of(tl.load(shapes, mask=live, other=0), alignment)
    layer_stride = tl.multiple_of(tl.load(shapes + sources, mask=live, other=0), alignment)
    kv_stride = tl.multiple_of(tl.load(shapes + 2 * sources, mask=live, other=0), alignment)
    by_layer = by_source + 3 * sources
    read = distance + tl.multiple_of(
        (source_slot // source_block) * source_block_stride
        + (source_slot % source_block) * source_token_stride
        + head * source_head_stride,
        alignment,
    )
    write = tl.multiple_of(
        (target_slot // target_block) * target_block_stride
        + (target_slot % target_block) * target_token_stride
        + head * target_head_stride,
        alignment,
    )

    pair = tl.arange(0, half_block)
    half_mask = live[:, None] & (pair < half)[None, :]
    from_row = source_position[:, None] * half + pair[None, :]
    to_row = target_position[:, None] * half + pair[None, :]
    cos_from = tl.load(cos_table + from_row, mask=half_mask, other=1.0)
    sin_from = tl.load(sin_table + from_row, mask=half_mask, other=0.0)
    cos_to = tl.load(cos_table + to_row, mask=half_mask, other=1.0)
    sin_to = tl.load(sin_table + to_row, mask=half_mask, other=0.0)
    scale = 1.0 / (cos_from * cos_from + sin_from * sin_from)
    cos = (cos_to * cos_from + sin_to * sin_from) * scale
    sin = (sin_to * cos_from - cos_to * sin_from) * scale
    moves = (source_position != target_position)[:, None]

    column = tl.arange(0, head_block)
    head_mask = live[:, None] & (column < head_dim)[None, :]
    both = tl.arange(0, 2 * half_block)
    both_mask = live[:, None] & (both < 2 * half)[None, :]
    # What rotates is the first part of a head, or the last.
    rest = tl.arange(0, rest_block)
    rest_mask = live[:, None] & (rest < head_dim - 2 * half)[None, :]
    if offset == 0:
        rest += 2 * half
    first_column = offset + pair[None, :]
    second_column = offset + half + pair[None, :]
    both_columns = offset + both[None, :]

    if shifting:
        # Rows that take a mean of K from position 0, as stored in tables, to its new place.
        cos_zero = tl.load(cos_table + pair, mask=pair < half, other=1.0)[None, :]
        sin_zero = tl.load(sin_table + pair, mask=pair < half, other=0.0)[None, :]
        zero_scale = 1.0 / (cos_zero * cos_zero + sin_zero * sin_zero)
        mean_cos = (cos_to * cos_zero + sin_to * sin_zero) * zero_scale
        mean_sin = (sin_to * cos_zero - cos_to * sin_zero) * zero_scale
        far = tl.abs(target_position - source_position) > same_depth
        shifts = far[:, None]
        columns = tokens + tokens % 2
        depth_stride = heads * head_dim
        place = tl.load(token_depths + token, mask=live, other=0.0).to(tl.int64)
        after = ((place * heads + head) * head_dim)[:, None]
        after_share = tl.load(token_depths + columns + token, mask=live, other=0.0)[:, None]
        place = tl.load(token_depths + 2 * columns + token, mask=live, other=0.0).to(tl.int64)
        before = ((place * heads + head) * head_dim)[:, None]
        before_share = tl.load(token_depths + 3 * columns + token, mask=live, other=0.0)[:, None]

    start = first_layer + tl.program_id(1) * layers_each
    for layer in range(start, min(start + layers_each, first_layer + layers)):
        keys_place = tl.multiple_of(tl.load(by_layer + layer), alignment)
        keys_out = target + (keys_place + write)[:, None]
        if layered:
            own = by_layer + parts * table_layers + layer + source_ahead
            keys_in = source + (read + tl.multiple_of(tl.load(own), alignment))[:, None]
        else:
            keys_in = source + (read + (layer + source_ahead) * layer_stride)[:, None]
        # Issue all loads of a layer before its stores, so that they are in flight together.
        if parts == 2:
            values_place = tl.multiple_of(tl.load(by_layer + table_layers + layer), alignment)
            values_out = target + (values_place + write)[:, None]
            if layered:
                far_values = tl.multiple_of(tl.load(own + table_layers), alignment)
                values_in = source + (read + far_values)[:, None]
            else:
                values_in = keys_in + kv_stride[:, None]
            values = tl.load(values_in + column[None, :] * source_stride, mask=head_mask)
        if head_dim > 2 * half:
            passed = tl.load(keys_in + rest[None, :] * source_stride, mask=rest_mask)
        if shifting:
            key_means = means + tl.cast(layer, tl.int64) * parts * depths * depth_stride
            if parts == 2:
                away = _away(
                    key_means + depths * depth_stride,
                    after,
                    after_share,
                    before,
                    before_share,
                    depth_stride,
                    column[None, :],
                    head_mask & shifts,
                )
                values = _add(values, away, shifts)
            if head_dim > 2 * half:
                away = _away(
                    key_means,
                    after,
                    after_share,
                    before,
                    before_share,
                    depth_stride,
                    rest[None, :],
                    rest_mask & shifts,
                )
                passed = _add(passed, away, shifts)
        if interleaved:
            keys = tl.load(keys_in + both_columns * source_stride, mask=both_mask)
            first, second = tl.split(tl.reshape(keys, (tile_rows, half_block, 2)))
            first, second = _turn(first, second, cos, sin, moves, clipped, half_mask, fp8)
            if shifting:
                away = _away(
                    key_means,
                    after,
                    after_share,
                    before,
                    before_share,
                    depth_stride,
                    both_columns,
                    both_mask & shifts,
                )
                a, b = tl.split(tl.reshape(away, (tile_rows, half_block, 2)))
                first = _add(first, a * mean_cos - b * mean_sin, shifts)
                second = _add(second, b * mean_cos + a * mean_sin, shifts)
            keys = tl.reshape(tl.join(first, second), (tile_rows, 2 * half_block))
            tl.store(keys_out + both_columns * target_stride, keys, mask=both_mask)
        else:
            first = tl.load(keys_in + first_column * source_stride, mask=half_mask)
            second = tl.load(keys_in + second_column * source_stride, mask=half_mask)
            first, second = _turn(first, second, cos, sin, moves, clipped, half_mask, fp8)
            if shifting:
                a = _away(
                    key_means,
                    after,
                    after_share,
                    before,
                    before_share,
                    depth_stride,
                    first_column,
                    half_mask & shifts,
                )
                b = _away(
                    key_means,
                    after,
                    after_share,
                    before,
                    before_share,
                    depth_stride,
                    second_column,
                    half_mask & shifts,
                )
                first = _add(first, a * mean_cos - b * mean_sin, shifts)
                second = _add(second, b * mean_cos + a * mean_sin, shifts)
            tl.store(keys_out + first_column * target_stride, first, mask=half_mask)
            tl.store(keys_out + second_column * target_stride, second, mask=half_mask)
        if head_dim > 2 * half:
            tl.store(keys_out + rest[None, :] * target_stride, passed, mask=rest_mask)
        if parts == 2:
            tl.store(values_out + column[None, :] * target_stride, values, mask=head_mask)
