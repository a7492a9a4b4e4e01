"""Runs the GPU passes in Triton's interpreter and prints how they compare with transformers.

A process of its own, because Triton decides when it is imported whether to interpret:

    TRITON_INTERPRET=1 python -m tests.engine.gpu_interpreter
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import torch

from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import KvShape, PagedPool
from semblend.engine.cuda.forward import FusedForward
from semblend.engine.cuda.fused_pass import CudaPasses
from semblend.engine.cuda.pass_buffer import Layout, to_device
from semblend.engine.cuda.tiled_attention import LayerKv, attend_tiles
from semblend.engine.cuda.tiles import RowRun, TileShape, plan_tiles
from tests.engine.donors import make_pool, make_table
from tests.engine.models import plain_kv, plain_model, plain_rows, random_tokens, tiny

SIZE = 23
HOLES = [4, 5, 17]
ROWS = 3
"""Of the last hole whose logits are wanted."""
COMPARED = (
    ("llama-gqa", None, False),
    ("qwen3", None, True),
    ("llama-mqa", 3, False),
    ("qwen2", None, False),
    ("mistral", None, False),
)
"""Architecture, how its pages are scattered, whether the pass is filled up for a graph."""


def runs_of(tokens: np.ndarray, table: PageTable) -> list[ComputeRun]:
    """A prompt cut into holes."""
    edges = [0, *HOLES, len(tokens)]
    return [
        ComputeRun(
            tokens=tokens[a:b], start=a, table=table, logit_rows=ROWS if b == len(tokens) else 0
        )
        for a, b in itertools.pairwise(edges)
    ]


def compare_pass(architecture: str, *, scatter: int | None, padded: bool) -> dict[str, float]:
    """A whole pass against plain transformers, pool poisoned."""
    model, plain = tiny(architecture)
    shape, ours = model.kv_shape, plain_model(architecture)
    passes = CudaPasses(ours, model.rotary, groups=6 // shape.kv_heads, kv_heads=shape.kv_heads)
    pool, tokens = make_pool(model, 64), random_tokens(SIZE, 1)
    pool.data.fill_(float("nan"))
    table = make_table(pool, SIZE, scatter)
    runs = runs_of(tokens, table)
    if padded:
        layout = passes.recordable(pool, runs)
        assert layout is not None
        assert len(layout) == 64
        logits = FusedForward(ours, model.rotary)(pool, to_device(layout, pool))
    else:
        logits = passes.compute(pool, runs)
    taken = torch.zeros(pool.by_slot.shape[2], dtype=torch.bool)
    taken[torch.from_numpy(table.slots(0, SIZE))] = True
    return {
        "logits": float((logits - plain_rows(plain, tokens, ROWS)).abs().max()),
        "kv": float((pool.read(table, 0, SIZE) - plain_kv(plain, tokens)).abs().max()),
        "others_touched": float((~pool.by_slot[:, :, ~taken].isnan()).sum()),
    }


def compare_attention(
    groups: int, dim: int, shape: TileShape, splits: int | None, how: str
) -> float:
    """Tiles of two requests against a softmax in float64; largest error."""
    kv_heads, page = 2, 4
    kind = KvShape(layers=1, kv_heads=kv_heads, head_dim=dim, dtype=torch.float32)
    pool = PagedPool(
        kind, capacity_bytes=kind.token_bytes * 256, page_size=page, device=torch.device("cpu")
    )
    pool.data.fill_(float("nan"))
    generator = torch.Generator().manual_seed(dim)
    rng = np.random.default_rng(dim)
    runs: list[RowRun] = []
    pages: list[np.ndarray] = []
    tables: list[torch.Tensor] = []
    row = 0
    for size, holes in ((101, [(0, 3), (50, 60), (90, 101)]), (40, [(39, 40)])):
        own = pool.allocator.allocate(pool.pages_for(size))
        own = rng.permutation(own) if how == "paged" else own
        where = torch.from_numpy(PageTable(pages=own, page_size=page).slots(0, size))
        for kv in (pool.keys(0), pool.values(0)):
            kv[where] = torch.randn(size, kv_heads, dim, generator=generator)
        base = sum(map(len, pages)) if how == "paged" else int(own[0]) * page
        positions = np.concatenate([np.arange(a, b) for a, b in holes])
        breaks = np.cumsum([0, *[b - a for a, b in holes][:-1]])
        runs.append(RowRun(row=row, positions=positions, base=base, breaks=breaks))
        pages.append(own)
        tables.append(where)
        row += len(positions)
    plan = plan_tiles(runs, shape, groups=groups, kv_heads=kv_heads, processors=4, splits=splits)
    layout = Layout(
        tokens=np.zeros(row, np.int32),
        positions=np.concatenate([run.positions for run in runs]).astype(np.int32),
        slots=np.zeros(row, np.int32),
        wanted=np.zeros(1, np.int32),
        pages=np.concatenate(pages).astype(np.int32) if how == "paged" else None,
        plans=(plan,),
    )
    queries = torch.randn(row, groups * kv_heads, dim, generator=generator)
    kv = LayerKv(keys=pool.keys(0), values=pool.values(0))
    out = attend_tiles(
        queries, kv, to_device(layout, pool).map, dim**-0.5, bulk=how == "bulk"
    ).double()
    worst = 0.0
    for run, where in zip(runs, tables, strict=True):
        mine = slice(run.row, run.row + len(run.positions))
        keys = pool.keys(0)[where].double().repeat_interleave(groups, dim=1)
        values = pool.values(0)[where].double().repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries[mine].double(), keys) * dim**-0.5
        seen = torch.arange(len(where)) <= torch.from_numpy(run.positions)[:, None]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        want = torch.einsum("hqk,khd->qhd", weights, values)
        error = float((out[mine] - want).abs().max())
        worst = max(worst, error if error == error else float("inf"))
    return worst


def main() -> None:
    """Print one JSON object."""
    np.seterr(divide="ignore")  # an empty item has a log-sum-exp of minus infinity
    passes = {
        f"{name} scatter={scatter} padded={padded}": compare_pass(
            name, scatter=scatter, padded=padded
        )
        for name, scatter, padded in COMPARED
    }
    small = TileShape(rows=16, keys=16, warps=1, stages=1)
    large = TileShape(rows=64, keys=32, warps=1, stages=1)
    attention = {
        f"{groups}x{dim} rows={shape.rows} splits={splits} {how}": compare_attention(
            groups, dim, shape, splits, how
        )
        for groups, dim, shape, splits, how in (
            (7, 16, large, None, "bulk"),
            (7, 16, large, 3, "bulk"),
            (7, 16, small, 5, "bulk"),
            (3, 24, large, 2, "paged"),
            (1, 16, large, None, "pointers"),
        )
    }
    print(json.dumps({"passes": passes, "attention": attention}))


if __name__ == "__main__":
    main()
