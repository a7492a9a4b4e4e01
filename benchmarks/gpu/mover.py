"""Checks and times the K/V mover on a GPU, into the pools of the engines it serves.

Run from the repository root, with torch, triton and numpy alone:

    PYTHONPATH=src:. python benchmarks/gpu/mover.py --json

K/V of Qwen2.5-7B's shape, 8K to 32K tokens in segments of 512, moves from pinned host memory and
from the device into vLLM's layouts, and out of them again as a capture does. The figure is the
share of a plain copy of the same bytes from pinned memory, measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.machine import Figure, at_least, at_most, info, kernel_s, wall_s

from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layerwise import ALL_DIRECT, DIRECT_SHARE, LayerwiseLoad
from semblend.kv.paged_kv import PagedKv
from semblend.kv.pinned_arena import PinnedArena
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, CopyRuns
from semblend.kv.transfer import copy_spans

LAYERS, HEADS, DIM, BLOCK, SEGMENT = 28, 4, 128, 16, 512
TOKEN_BYTES = LAYERS * 2 * HEADS * DIM * 2
TOKENS = (8192, 16384, 32768)
SHIFT = 217
"""Positions a donor moves by."""

Shape = tuple[int, int, int, int]
"""Layers, blocks, heads, numbers per head."""


def blocks_then_kv(shape: Shape, dtype: torch.dtype) -> PagedKv:
    """vLLM's FlashAttention before 0.32."""
    layers, blocks, heads, dim = shape
    pools = [_zeros((blocks, 2, BLOCK, heads, dim), dtype) for _ in range(layers)]
    return PagedKv(keys=tuple(p[:, 0] for p in pools), values=tuple(p[:, 1] for p in pools))


def heads_then_both(shape: Shape, dtype: torch.dtype) -> PagedKv:
    """vLLM 0.32: K and V of a token side by side, heads before tokens."""
    layers, blocks, heads, dim = shape
    pools = [_zeros((blocks, heads, BLOCK, 2 * dim), dtype).transpose(1, 2) for _ in range(layers)]
    return PagedKv(
        keys=tuple(p[..., :dim] for p in pools), values=tuple(p[..., dim:] for p in pools)
    )


def single_slots(shape: Shape, dtype: torch.dtype) -> PagedKv:
    """SGLang's layout."""
    layers, blocks, heads, dim = shape
    keys, values = (
        [_zeros((blocks * BLOCK, heads, dim), dtype) for _ in range(layers)] for _ in range(2)
    )
    return PagedKv.of_slots(keys, values)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def table_of(positions: int, pairing: Pairing = Pairing.NEOX, rotary_dim: int = DIM) -> RotaryTable:
    """Rows on the device."""
    spec = RotarySpec(
        head_dim=DIM, rotary_dim=rotary_dim, theta=1e6, max_positions=positions, pairing=pairing
    )
    return RotaryTable.from_spec(spec, device="cuda")


def drift_of(layers: int) -> DepthDrift:
    """A table of 24 depths."""
    means = torch.randn((layers, 2, 24, HEADS, DIM), device="cuda")
    return DepthDrift(depths=torch.linspace(0, 40_000, 24, device="cuda"), means=means)


def batch_of(
    segments: list[torch.Tensor], slots: np.ndarray, *, holes: float = 0.0, shift: int = SHIFT
) -> CopyBatch:
    """All tokens of the segments except `holes`; a share is recomputed in blocks of 32."""
    rng = np.random.default_rng(0)
    runs, at = CopyRuns(), 0
    for segment in segments:
        tokens = int(segment.shape[2])
        kept = rng.random(-(-tokens // 32)) >= holes
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)) * 32
        for low, high in edges.reshape(-1, 2).clip(max=tokens).tolist():
            runs.add(
                segment,
                row=low,
                source_start=at + low,
                target_start=at + low + shift,
                tokens=high - low,
            )
        at += tokens
    return runs.batch(slots)


def slots_of(blocks: int) -> np.ndarray:
    """Slots of a request with scattered blocks."""
    table = np.random.default_rng(1).permutation(blocks)
    return (table[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


def contents(pool: PagedKv) -> torch.Tensor:
    """[layers, 2, slots, heads, dim], copied."""
    return torch.stack([torch.stack(pool.keys), torch.stack(pool.values)], dim=1).flatten(2, 3)


CHECKED = (
    (torch.bfloat16, Pairing.NEOX, DIM, blocks_then_kv),
    (torch.bfloat16, Pairing.NEOX, DIM, heads_then_both),
    (torch.bfloat16, Pairing.NEOX, DIM, single_slots),
    (torch.bfloat16, Pairing.INTERLEAVED, 96, heads_then_both),
    (torch.float16, Pairing.NEOX, 64, heads_then_both),
    (torch.float32, Pairing.INTERLEAVED, DIM, blocks_then_kv),
)
"""Each is compiled twice, which takes the time; the interpreter's tests cover them all."""


def check() -> list[Figure]:
    """Compare layouts, types and ways with torch, including unwritten slots."""
    figures, layers, blocks = [], 5, 120
    limits = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
    stream = torch.cuda.Stream()
    for (dtype, pairing, rotary_dim, layout), shifted in itertools.product(CHECKED, (False, True)):
        table, drift = table_of(4096, pairing, rotary_dim), drift_of(layers) if shifted else None
        sizes = [(layers, 2, tokens, HEADS, DIM) for tokens in (512, 512, 376)]
        host = [torch.randn(size).to(dtype).pin_memory() for size in sizes]
        near = [segment.cuda() for segment in host]
        slots = slots_of(blocks)
        want = layout((layers, blocks, HEADS, DIM), dtype)
        batch = batch_of(near, slots, holes=0.2, shift=300)
        copy_spans(want, batch, table, drift=drift, backend="torch")
        expected, worst = contents(want).double(), 0.0
        for way in ("device", "staged", "direct", "call"):
            pool = layout((layers, blocks, HEADS, DIM), dtype)
            batch = batch_of(near if way == "device" else host, slots, holes=0.2, shift=300)
            if way in ("device", "call"):
                copy_spans(pool, batch, table, drift=drift)
            else:
                share = ALL_DIRECT if way == "direct" else 0.0
                load(pool, lambda batch=batch: batch, table, drift=drift, stream=stream,
                     direct_share=share)  # fmt: skip
            difference = (contents(pool).double() - expected).abs().max()
            worst = max(worst, float(difference / expected.abs().max()))
        name = f"{dtype} {pairing.value}/{rotary_dim} {layout.__name__} shifted={shifted}"
        figures.append(at_most(name, "relative_error", worst, limits[dtype]))
    return figures


def arena_segments(tokens: int) -> tuple[list[torch.Tensor], list[Figure]]:
    """Segments in one pinned arena, and the cost of pinning."""
    arena = PinnedArena(tokens * TOKEN_BYTES, segment_bytes=SEGMENT * TOKEN_BYTES)
    started = time.perf_counter()
    shape = (LAYERS, 2, SEGMENT, HEADS, DIM)
    segments = [arena.empty(shape, torch.bfloat16) for _ in range(tokens // SEGMENT)]
    pinned_s = time.perf_counter() - started
    for number, segment in enumerate(segments):
        segment.view(torch.int16).fill_(15000 + number)
    gib = arena.held_bytes / (1 << 30)
    return segments, [
        info(f"arena of {gib:.2f} GiB", "pinning", pinned_s * 1e3, "ms"),
        at_least("arena", "is_pinned", float(segments[-1].is_pinned()), 1.0),
    ]


def measure(tokens: int, all_segments: list[torch.Tensor]) -> list[Figure]:
    """One length: memory to cache and cache to memory, each next to a plain copy."""
    segments = all_segments[: tokens // SEGMENT]
    nbytes, blocks = tokens * TOKEN_BYTES, tokens // BLOCK + 64
    table, drift, slots = table_of(tokens + 1024), drift_of(LAYERS), slots_of(blocks)
    stream = torch.cuda.Stream()
    layer = torch.empty(nbytes // LAYERS, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty_like(layer, device="cuda")

    def plain() -> None:
        for _ in range(LAYERS):
            on_device.copy_(layer, non_blocking=True)

    def plain_back() -> None:
        for _ in range(LAYERS):
            layer.copy_(on_device, non_blocking=True)

    memcpy, memcpy_back = wall_s(plain), wall_s(plain_back)
    figures = [
        info(f"{tokens} tokens", "plain_copy_in", nbytes / memcpy / 1e9, "GB/s"),
        info(f"{tokens} tokens", "plain_copy_out", nbytes / memcpy_back / 1e9, "GB/s"),
    ]
    for layout in (heads_then_both,) if tokens < max(TOKENS) else (heads_then_both, blocks_then_kv):
        pool = layout((LAYERS, blocks, HEADS, DIM), torch.bfloat16)
        for name, share, holes, shift, target in (
            ("staged", DIRECT_SHARE, 0.0, None, 0.85),
            ("staged, 5% left out", DIRECT_SHARE, 0.05, None, 0.80),
            ("staged, shifted", DIRECT_SHARE, 0.0, drift, 0.80),
            ("read over the bus", ALL_DIRECT, 0.0, None, None),
        ):
            case = f"{tokens} tokens, {layout.__name__}, {name}"
            run = partial(
                load,
                pool,
                partial(batch_of, segments, slots, holes=holes),
                table,
                drift=shift,
                stream=stream,
                direct_share=share,
            )
            seconds, host = wall_s(run), host_s(run)
            figures += [
                info(case, "time", seconds * 1e3, "ms"),
                info(case, "host_time", host * 1e3, "ms"),
                info(case, "rate", nbytes / seconds / 1e9, "GB/s"),
            ]
            speed = memcpy / seconds
            if target is None:
                figures.append(info(case, "share_of_plain_copy", speed, "ratio"))
            else:
                figures.append(at_least(case, "share_of_plain_copy", speed, target))
            if tokens == max(TOKENS):
                figures += launches(case, run)
        figures += device_figures(tokens, layout.__name__, pool, table, drift, slots, segments)
        figures += capture_figures(tokens, layout.__name__, pool, slots, segments, memcpy_back)
    return figures


def load(pool: PagedKv, batch: Callable[[], CopyBatch], table: RotaryTable, **options: Any) -> None:
    """Plan a load from the host and carry it out."""
    LayerwiseLoad(pool, batch(), table, **options).place_all()


def device_figures(
    tokens: int,
    name: str,
    pool: PagedKv,
    table: RotaryTable,
    drift: DepthDrift,
    slots: np.ndarray,
    segments: list[torch.Tensor],
) -> list[Figure]:
    """Donors on the device: one launch."""
    near = [segment.cuda() for segment in segments]
    batch = batch_of(near, slots)
    figures = []
    for way, shift in (("device", None), ("device, shifted", drift)):
        case = f"{tokens} tokens, {name}, {way}"
        run = partial(copy_spans, pool, batch, table, drift=shift)
        seconds, busy = wall_s(run), kernel_s(run)
        figures += [
            at_most(case, "time", seconds * 1e3, 25.0, "ms"),
            info(case, "rate", 2 * tokens * TOKEN_BYTES / busy / 1e12, "TB/s"),
        ]
    return figures


def capture_figures(
    tokens: int,
    name: str,
    pool: PagedKv,
    slots: np.ndarray,
    segments: list[torch.Tensor],
    memcpy_back: float,
) -> list[Figure]:
    """From the cache into segments: gathered on the device, four at a time, then copied."""
    rows = RotaryTable(cos=torch.ones(1, DIM // 2), sin=torch.zeros(1, DIM // 2)).to("cuda")
    together = 4
    buffer = torch.empty((together, LAYERS, 2, SEGMENT, HEADS, DIM), dtype=torch.bfloat16).cuda()
    into = PagedKv(
        keys=tuple(buffer[:, layer, 0] for layer in range(LAYERS)),
        values=tuple(buffer[:, layer, 1] for layer in range(LAYERS)),
    )
    still = np.zeros(together * SEGMENT, dtype=np.int64)

    def capture() -> None:
        for first in range(0, len(segments), together):
            begin = first * SEGMENT
            batch = CopyBatch(
                sources=(pool,),
                source_numbers=still,
                source_slots=slots[begin : begin + still.size],
                target_slots=np.arange(still.size),
                source_positions=still,
                target_positions=still,
                span_offsets=still,
            )
            copy_spans(into, batch, rows)
            for segment, part in zip(segments[first : first + together], buffer, strict=False):
                segment.copy_(part, non_blocking=True)

    seconds = wall_s(capture)
    case = f"{tokens} tokens, {name}, capture"
    limit = {8192: 100.0, 16384: 200.0, 32768: 400.0}[tokens]
    return [
        at_most(case, "time_without_checksums", seconds * 1e3, limit, "ms"),
        info(case, "share_of_plain_copy", memcpy_back / seconds, "ratio"),
    ]


def host_s(run: Callable[[], object]) -> float:
    """Median seconds until a call returns."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    torch.cuda.synchronize()
    return float(np.median(times))


def launches(case: str, run: Callable[[], object]) -> list[Figure]:
    """Count driver calls."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        run()
        torch.cuda.synchronize()
    events = seen.key_averages()
    return [
        info(case, metric, float(sum(e.count for e in events if word in e.key)), "calls")
        for metric, word in (
            ("kernel_launches", "LaunchKernel"),
            ("copies", "cudaMemcpy"),
            ("pageable_copies", "Pageable"),
            ("synchronisations", "Synchronize"),
        )
    ]


def main() -> int:
    """Check, then measure; 0 only if every figure is ok."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu/mover.py needs an NVIDIA GPU", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    figures = check()
    if all(figure.ok for figure in figures):
        segments, pinned = arena_segments(max(TOKENS))
        figures += pinned
        for tokens in TOKENS:
            figures += measure(tokens, segments)
    if options.json:
        report = {
            "benchmark": "kv-mover",
            "command": " ".join(["python", *sys.argv]),
            "rows": [asdict(figure) for figure in figures],
        }
        print(json.dumps(report))
    else:
        for figure in figures:
            mark = "" if figure.target is None else f" (target {figure.target:g})"
            state = "ok  " if figure.ok else "MISS"
            print(f"{state} {figure.case}: {figure.metric} {figure.value:.4g}{mark}")
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
