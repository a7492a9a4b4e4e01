"""One layer's attention by tile shape, next to the stock kernels, in TFLOP/s."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.machine import Figure, info, kernel_s

from semblend.engine.cache.pool import KvShape, PagedPool
from semblend.engine.cuda.pass_buffer import Layout, to_device
from semblend.engine.cuda.tiled_attention import LayerKv, attend_tiles
from semblend.engine.cuda.tiles import RowRun, TileShape, plan_tiles

SHAPES = (
    (TileShape(rows=128, keys=128, warps=8, stages=2), True),
    (TileShape(rows=128, keys=128, warps=8, stages=3), True),
    (TileShape(rows=128, keys=64, warps=8, stages=3), True),
    (TileShape(rows=128, keys=64, warps=8, stages=3), False),
    (TileShape(rows=64, keys=64, warps=4, stages=3), True),
    (TileShape(rows=64, keys=64, warps=4, stages=3), False),
)
"""Tile shapes, and whether keys are read by bulk copies."""
ITEMS_EACH = (1, 2, 3, 6)
GROUPS, KV_HEADS, DIM = 7, 4, 128
SCALE = DIM**-0.5


def time_shapes() -> list[Figure]:
    """Runs of 64 tokens all over a prompt, and whole prompts."""
    figures = []
    for name, size, share in (
        ("8K 5 %", 8192, 0.05),
        ("32K 5 %", 32768, 0.05),
        ("32K 15 %", 32768, 0.15),
        ("16K cold", 16384, 1.0),
    ):
        pool, runs, positions = _case(size, share)
        queries = torch.randn(len(positions), GROUPS * KV_HEADS, DIM, device="cuda").bfloat16()
        kv = LayerKv(keys=pool.keys(0), values=pool.values(0))
        flops = 4.0 * GROUPS * KV_HEADS * DIM * float((positions + 1).sum())
        for (shape, bulk), each in product(SHAPES, ITEMS_EACH if share < 1 else (3,)):
            rate = _rate(pool, runs, positions, queries, kv, shape, bulk, flops, each)
            label = f"{name} rows={shape.rows} keys={shape.keys} warps={shape.warps} "
            label += f"stages={shape.stages} {'bulk' if bulk else 'pointers'} each={each}"
            figures.append(info(label, "attention_rate", rate, "TFLOP/s"))
        for label, run in _stock(runs[0], queries, kv, size, share).items():
            try:
                rate = flops / kernel_s(run, rep=40) / 1e12
            except RuntimeError as error:
                print(f"{name} {label}: {str(error)[:200]}", flush=True)
                rate = 0.0
            figures.append(info(f"{name} {label}", "attention_rate", rate, "TFLOP/s"))
    return figures


def _case(size: int, share: float) -> tuple[PagedPool, list[RowRun], Any]:
    kind = KvShape(layers=1, kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.bfloat16)
    pool = PagedPool(
        kind,
        capacity_bytes=kind.token_bytes * (size + 512),
        page_size=16,
        device=torch.device("cuda"),
    )
    pool.data.normal_()
    count = round(share * size / 64)
    starts = np.linspace(0, size - 64, count).astype(int) if share < 1 else np.arange(0, size, 64)
    positions = np.concatenate([np.arange(start, start + 64) for start in starts])
    breaks = np.arange(0, len(positions), 64) if share < 1 else np.array([0])
    return pool, [RowRun(row=0, positions=positions, base=0, breaks=breaks)], positions


def _rate(
    pool: PagedPool,
    runs: list[RowRun],
    positions: Any,
    queries: torch.Tensor,
    kv: LayerKv,
    shape: TileShape,
    bulk: bool,
    flops: float,
    items_each: int,
) -> float:
    plan = plan_tiles(
        runs, shape, groups=GROUPS, kv_heads=KV_HEADS, processors=132, items_each=items_each
    )
    layout = Layout(
        tokens=np.zeros(len(positions), np.int32),
        positions=positions.astype(np.int32),
        slots=np.zeros(len(positions), np.int32),
        wanted=np.zeros(1, np.int32),
        pages=None,
        plans=(plan,),
    )
    rows = to_device(layout, pool)
    try:
        run = partial(attend_tiles, queries, kv, rows.map, SCALE, bulk=bulk)
        return flops / kernel_s(run, rep=40) / 1e12
    except Exception as error:  # a shape that needs more shared memory than available
        print(f"{shape} bulk={bulk}: {str(error)[:200]}", flush=True)
        return 0.0


def _stock(
    run: RowRun, queries: torch.Tensor, kv: LayerKv, size: int, share: float
) -> dict[str, Any]:
    """The kernels that come with torch, if they support the case."""
    aten = torch.ops.aten
    if share < 1:
        # Every run is a sequence whose keys begin at 0; key offsets need not increase.
        count = len(run.breaks)
        at = torch.arange(0, 64 * count + 1, 64, dtype=torch.int32, device="cuda")
        zeros = torch.zeros(count + 1, dtype=torch.int32, device="cuda")
        ends = torch.from_numpy(run.positions[63::64] + 1).int().cuda()
        return {
            "stock flash, variable length": lambda: aten._flash_attention_forward(
                queries, kv.keys, kv.values, at, zeros, 64, size, 0.0, True, False,
                scale=SCALE, seqused_k=ends,
            )
        }  # fmt: skip
    query = queries.transpose(0, 1)[None]
    key, value = (rows[:size].transpose(0, 1)[None] for rows in (kv.keys, kv.values))
    wide = (1, GROUPS * KV_HEADS, size, DIM)
    full_key, full_value = (
        rows[:, :, None].expand(1, KV_HEADS, GROUPS, size, DIM).reshape(wide)
        for rows in (key, value)
    )
    return {
        "stock flash": lambda: aten._scaled_dot_product_flash_attention(
            query, full_key, full_value, 0.0, True, False, scale=SCALE
        ),
        "stock flash, grouped": lambda: aten._flash_attention_forward(
            queries[None], kv.keys[None, :size], kv.values[None, :size], None, None,
            size, size, 0.0, True, False, scale=SCALE,
        ),
        "stock cuDNN": lambda: aten._scaled_dot_product_cudnn_attention(
            query, full_key, full_value, None, False, 0.0, True, False, scale=SCALE
        ),
        "stock cuDNN, grouped": lambda: aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, False, 0.0, True, False, scale=SCALE
        ),
    }  # fmt: skip
