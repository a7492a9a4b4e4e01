"""The pools of every engine, and random copies into and out of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layer_rotary import LayerRotary, Rotary
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, CopyRuns
from tests.oracles.rotary_float64 import copy_token_by_token, shift_token_by_token

ROWS = 1024
SHAPES = ((16, 16, 2), (20, 12, 3), (10, 2, 1), (24, 24, 1), (12, 6, 2))
"""(head_dim, rotary_dim, kv_heads): whole and partial rotary, powers of two and not."""

LATENT_SHAPES = ((20, 4, 1), (24, 8, 1), (40, 8, 1))
"""The same of rows whose last numbers rotate."""

Make = Callable[..., torch.Tensor]


def blocks_then_kv(
    make: Make, layers: int, blocks: int, size: int, heads: int, dim: int
) -> PagedKv:
    """vLLM's FlashAttention: [blocks, 2, block_size, heads, dim] a layer."""
    pools = [make(blocks, 2, size, heads, dim) for _ in range(layers)]
    return PagedKv(keys=tuple(p[:, 0] for p in pools), values=tuple(p[:, 1] for p in pools))


def kv_then_blocks(
    make: Make, layers: int, blocks: int, size: int, heads: int, dim: int
) -> PagedKv:
    """Older vLLM: [2, blocks, block_size, heads, dim] a layer."""
    pools = [make(2, blocks, size, heads, dim) for _ in range(layers)]
    return PagedKv(keys=tuple(p[0] for p in pools), values=tuple(p[1] for p in pools))


def heads_then_both(
    make: Make, layers: int, blocks: int, size: int, heads: int, dim: int
) -> PagedKv:
    """vLLM 0.32: [blocks, heads, block_size, 2 dim] a layer, K and V of a token side by side."""
    pools = [make(blocks, heads, size, 2 * dim).transpose(1, 2) for _ in range(layers)]
    return PagedKv(
        keys=tuple(p[..., :dim] for p in pools), values=tuple(p[..., dim:] for p in pools)
    )


def number_by_number(
    make: Make, layers: int, blocks: int, size: int, heads: int, dim: int
) -> PagedKv:
    """K and V number by number: no engine's, but strides say it all the same."""
    pools = [make(blocks, size, heads, dim, 2) for _ in range(layers)]
    return PagedKv(keys=tuple(p[..., 0] for p in pools), values=tuple(p[..., 1] for p in pools))


def single_slots(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """SGLang: K and V apart, [slots, heads, dim] a layer."""
    keys, values = ([make(blocks * size, heads, dim) for _ in range(layers)] for _ in range(2))
    return PagedKv.of_slots(keys, values)


def layers_inside(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """TensorRT-LLM: one [blocks, layers, 2, heads, block_size, dim]."""
    pool = make(blocks, layers, 2, heads, size, dim).transpose(3, 4)
    return PagedKv(
        keys=tuple(pool[:, layer, 0] for layer in range(layers)),
        values=tuple(pool[:, layer, 1] for layer in range(layers)),
    )


def ours(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """Our own: [layers, 2, pages, page_size, heads, dim]."""
    return PagedKv.of_tensor(make(layers, 2, blocks, size, heads, dim))


def latent_rows(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """vLLM's MLA: [blocks, block_size, latent and k_pe] a layer, and no V."""
    assert heads == 1
    return PagedKv(keys=tuple(make(blocks, size, dim)[:, :, None] for _ in range(layers)))


def latent_slots(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """SGLang's MLA: [slots, 1, latent and k_pe] a layer."""
    return PagedKv.of_slots([make(blocks * size, heads, dim) for _ in range(layers)], [])


def our_latents(make: Make, layers: int, blocks: int, size: int, heads: int, dim: int) -> PagedKv:
    """Our own with one part."""
    return PagedKv.of_tensor(make(layers, 1, blocks, size, heads, dim))


LAYOUTS = (
    blocks_then_kv,
    kv_then_blocks,
    heads_then_both,
    number_by_number,
    single_slots,
    layers_inside,
    ours,
)
LATENT_LAYOUTS = (latent_rows, latent_slots, our_latents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutCase:
    """A pool with something in it, what to copy into it, and what it shall hold then."""

    make: Callable[[], PagedKv]
    """The pool as it is before, new memory each time."""
    batch: CopyBatch
    table: Rotary
    drift: DepthDrift | None
    dtype: torch.dtype

    def stays(self) -> np.ndarray:
        """Target slots whose K does not move."""
        batch = self.batch
        return batch.target_slots[batch.source_positions == batch.target_positions]

    def expected(self) -> torch.Tensor:
        """[layers, parts, slots, heads, dim] in float64, token by token."""
        layers = range(len(self.make().keys))
        return torch.cat([self._expected(*run) for run in self.table.runs(layers)])

    def _expected(self, layers: range, table: RotaryTable) -> torch.Tensor:
        some = slice(layers.start, layers.stop)
        batch, before = self.batch, contents(self.make())[some]
        interleaved = table.pairing is Pairing.INTERLEAVED
        moves = [
            list(map(int, move))
            for move in zip(
                batch.source_numbers,
                batch.source_slots,
                batch.target_slots,
                batch.source_positions,
                batch.target_positions,
                batch.span_offsets,
                strict=True,
            )
        ]
        result = before.double()
        for number, source in enumerate(batch.sources):
            rows = contents(source) if isinstance(source, PagedKv) else source
            here = [tuple(move[1:5]) for move in moves if move[0] == number]
            result = copy_token_by_token(
                result,
                rows[some],
                here,
                table.cos,
                table.sin,
                interleaved=interleaved,
                offset=table.offset,
            )
        if self.drift is None:
            return result
        return shift_token_by_token(
            result,
            [(move[5], move[2], move[3], move[4]) for move in moves],
            self.drift.depths.tolist(),
            self.drift.means[some],
            table.cos,
            table.sin,
            interleaved=interleaved,
            first_number=table.offset,
        )


def by_places(batch: CopyBatch, device: str = "cpu") -> tuple[CopyBatch, torch.Tensor]:
    """The same copies with slots that only a device knows: places in its list of them."""
    listed = np.concatenate((batch.target_slots, batch.source_slots))
    own, theirs = np.arange(len(batch)), np.arange(len(batch), 2 * len(batch))
    batch = replace(batch, target_slots=own, source_slots=theirs)
    return batch, torch.from_numpy(listed).to(device)


def contents(kv: PagedKv) -> torch.Tensor:
    """A pool by slot, [layers, parts, slots, heads, dim], copied."""
    parts = [torch.stack(views) for views in (kv.keys, kv.values) if views]
    return torch.stack(parts, dim=1).flatten(2, 3)


def layout_case(
    seed: int, device: str = "cpu", donors: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> LayoutCase:
    """One case, everything about it drawn from a seed; `donors` puts segments elsewhere.

    One in four has rows of latents, and one in four has layers that rotate differently.
    """
    rng = np.random.default_rng(seed)
    latent, mixed = seed % 4 == 1, seed % 4 == 2
    shapes, layouts = (LATENT_SHAPES, LATENT_LAYOUTS) if latent else (SHAPES, LAYOUTS)
    dtype = (torch.float32, torch.float16, torch.bfloat16)[int(rng.integers(3))]
    dim, rotary_dim, heads = shapes[int(rng.integers(len(shapes)))]
    pairing = list(Pairing)[int(rng.integers(2))]
    layers, size = int(rng.integers(1, 5)), int(rng.choice([1, 3, 16]))
    lengths = rng.integers(1, 40, int(rng.integers(1, 5))).tolist()
    blocks = -(-sum(lengths) // size) + 2
    layout = layouts[int(rng.integers(len(layouts)))]
    spec = RotarySpec(
        head_dim=dim, rotary_dim=rotary_dim, theta=1e3, max_positions=ROWS, pairing=pairing
    )
    paged_source = bool(rng.integers(2))
    held, parts = 64, 1 if latent else 2
    source_layout = layouts[int(rng.integers(len(layouts)))]

    def filler(start: int) -> Make:
        generator = torch.Generator().manual_seed(start)

        def make(*shape: int) -> torch.Tensor:
            filled = torch.randn(shape, generator=generator).clamp(-3, 3).to(dtype)
            filled[torch.rand(shape, generator=generator) < 0.1] = -0.0
            return filled.to(device)

        return make

    make = filler(seed + 1)
    sources = (
        [source_layout(make, layers, held // 8, 8, heads, dim)]
        if paged_source
        else [make(layers, parts, held, heads, dim) for _ in range(3)]
    )
    if donors is not None and not paged_source:
        sources = [donors(source) for source in sources]
    runs = CopyRuns()
    at = 0
    for length in lengths:
        source_start = int(rng.integers(0, ROWS - length))
        target_start = at
        at += length
        if rng.integers(3) == 0:
            source_start = target_start  # this one stays
        cut = int(rng.integers(0, length))  # a span that lies in two pieces
        for first, end in ((0, cut), (cut, length)):
            if first < end:
                runs.add(
                    sources[int(rng.integers(len(sources)))],
                    row=int(rng.integers(0, held - (end - first) + 1)),
                    source_start=source_start + first,
                    target_start=target_start + first,
                    tokens=end - first,
                    span_offset=first,
                )
    slots = rng.permutation(blocks * size)
    if rng.integers(2):
        slots = np.sort(slots)
    drift = None
    if rng.integers(2):
        shape = (layers, parts, 4, heads, dim)
        means = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        drift = DepthDrift(depths=torch.tensor([5.0, 90.0, 400.0, 900.0]), means=means).to(device)
    table: Rotary = RotaryTable.from_spec(spec, device=device)
    if latent:
        table = replace(table, offset=dim - rotary_dim)
    elif mixed and layers > 1:
        local = RotaryTable.from_spec(replace(spec, theta=50.0), device=device)
        table = LayerRotary(
            tables=(local, table), of_layer=(*(n % 3 // 2 for n in range(layers - 1)), 1)
        )
    return LayoutCase(
        make=lambda: layout(filler(seed + 2), layers, blocks, size, heads, dim),
        batch=runs.batch(slots[: sum(lengths)].astype(np.int64)),
        table=table,
        drift=drift,
        dtype=dtype,
    )
