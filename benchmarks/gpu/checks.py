"""Checks kernels and passes against references before timing; outputs are poisoned first."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.machine import Figure, at_most
from benchmarks.gpu.seven_b import cold_run, hit_plan, make_model, make_pool, random_donor

from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import KvShape, PagedPool
from semblend.engine.cuda.fused_pass import DECODE_SHAPE, LONG_SHAPE, SHORT_SHAPE
from semblend.engine.cuda.pass_buffer import Layout, to_device
from semblend.engine.cuda.tiled_attention import LayerKv, attend_tiles
from semblend.engine.cuda.tiles import RowRun, TileShape, plan_tiles
from semblend.engine.materialise import layerwise_spans, load_spans
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute, runs_of_plan


def check_attention(rng: np.random.Generator) -> list[Figure]:
    """Tiles against float64: head shapes, one-row tiles, splits, pages side by side and not."""
    figures = []
    for groups, kv_heads, dim, shape, splits, how in (
        (7, 4, 128, LONG_SHAPE, None, "bulk"),
        (7, 4, 128, SHORT_SHAPE, None, "bulk"),
        (7, 4, 128, LONG_SHAPE, 3, "bulk"),
        (7, 4, 128, SHORT_SHAPE, 3, "bulk"),
        (7, 4, 128, LONG_SHAPE, None, "paged"),
        (7, 4, 128, LONG_SHAPE, None, "pointers"),
        (4, 8, 128, LONG_SHAPE, None, "bulk"),
        (1, 2, 64, LONG_SHAPE, 2, "bulk"),
        (3, 2, 80, LONG_SHAPE, None, "pointers"),
        (7, 4, 128, DECODE_SHAPE, 5, "bulk"),
    ):
        error = _attention_error(rng, groups, kv_heads, dim, shape, splits, how)
        case = f"attention {groups}x{kv_heads}x{dim} rows={shape.rows} splits={splits} {how}"
        figures.append(at_most(case, "relative_error", error, 8e-3, "of norm"))
    return figures


def _attention_error(
    rng: np.random.Generator,
    groups: int,
    kv_heads: int,
    dim: int,
    shape: TileShape,
    splits: int | None,
    how: str,
) -> float:
    kind = KvShape(layers=1, kv_heads=kv_heads, head_dim=dim, dtype=torch.bfloat16)
    page = 16
    pool = PagedPool(
        kind, capacity_bytes=kind.token_bytes * 4096, page_size=page, device=torch.device("cuda")
    )
    pool.data.fill_(float("nan"))
    runs: list[RowRun] = []
    slots: list[Any] = []
    pages: list[Any] = []
    row = 0
    for size, holes in ((1500, [(0, 40), (700, 764), (1400, 1500)]), (900, [(899, 900)])):
        own = pool.allocator.allocate(pool.pages_for(size))
        if how == "paged":
            own = rng.permutation(own)
        table = PageTable(pages=own, page_size=page)
        where = torch.from_numpy(table.slots(0, size)).cuda()
        for kv in (pool.keys(0), pool.values(0)):
            kv[where] = torch.randn(size, kv_heads, dim, device="cuda").bfloat16()
        positions = np.concatenate([np.arange(a, b) for a, b in holes])
        base = sum(map(len, pages)) if how == "paged" else int(own[0]) * page
        breaks = np.cumsum([0, *[b - a for a, b in holes][:-1]])
        runs.append(RowRun(row=row, positions=positions, base=base, breaks=breaks))
        pages.append(own)
        slots.append(where)
        row += len(positions)
    plan = plan_tiles(runs, shape, groups=groups, kv_heads=kv_heads, processors=132, splits=splits)
    layout = Layout(
        tokens=np.zeros(row, np.int32),
        positions=np.concatenate([run.positions for run in runs]).astype(np.int32),
        slots=np.zeros(row, np.int32),
        wanted=np.zeros(1, np.int32),
        pages=np.concatenate(pages).astype(np.int32) if how == "paged" else None,
        plans=(plan,),
    )
    rows = to_device(layout, pool)
    queries = torch.randn(row, groups * kv_heads, dim, device="cuda").bfloat16()
    kv = LayerKv(keys=pool.keys(0), values=pool.values(0))
    out = attend_tiles(queries, kv, rows.map, dim**-0.5, bulk=how == "bulk")
    worst = 0.0
    for run, where in zip(runs, slots, strict=True):
        mine = slice(run.row, run.row + len(run.positions))
        keys = pool.keys(0)[where].double().repeat_interleave(groups, dim=1)
        values = pool.values(0)[where].double().repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries[mine].double(), keys) * dim**-0.5
        seen = (
            torch.arange(len(where), device="cuda")
            <= torch.from_numpy(run.positions).cuda()[:, None]
        )
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        want = torch.einsum("hqk,khd->qhd", weights, values)
        error = float((out[mine].double() - want).norm() / want.norm())
        worst = max(worst, error if error == error else float("inf"))
    return worst


@torch.inference_mode()
def check_passes(rng: np.random.Generator) -> list[Figure]:
    """Two layers of the 7B shape: cold, in holes, hits from the card and from the host."""
    plain, model = make_model(num_hidden_layers=2)
    tokens = rng.integers(3, 150000, 1500).astype(np.int32)
    ids = torch.from_numpy(tokens.astype(np.int64)).cuda()[None]
    plain.set_attn_implementation("sdpa")
    exact = copy.deepcopy(plain).float()
    want = exact(ids, logits_to_keep=1).logits[0, -1].double()
    theirs = _error(plain(ids, logits_to_keep=1).logits[0, -1], want)
    figures = [at_most("plain transformers, bf16", "logit_error", theirs, 3e-2, "of norm")]
    pool = make_pool(model, 4096)
    for name, cuts in (("cold", []), ("holes", [7, 64, 65, 700, 764, 1499])):
        pool.data.fill_(float("nan"))
        table = PageTable(pages=np.arange(pool.pages_for(1500), dtype=np.int32), page_size=16)
        edges = [0, *cuts, 1500]
        runs = [
            ComputeRun(tokens=tokens[a:b], start=a, table=table, logit_rows=int(b == 1500))
            for a, b in pairwise(edges)
        ]
        error = _error(compute(model, pool, runs)[0], want)
        figures.append(at_most(f"engine, {name}", "logit_error", error, 1.5 * theirs, "of norm"))
    figures += _check_hits(model, pool, rng)
    figures += _check_decode(plain, exact, model, pool, tokens)
    return figures


def _check_hits(model: LoadedModel, pool: PagedPool, rng: np.random.Generator) -> list[Figure]:
    plan, tokens, donor_tokens = hit_plan(2000, 4, 0.1, rng)
    donor = random_donor(model, donor_tokens, on_host=False)
    host = random_donor(model, donor_tokens, on_host=True)
    for here, there in zip(donor.donor.pieces, host.donor.pieces, strict=True):
        there.kv.copy_(here.kv)
    table = PageTable(pages=np.arange(pool.pages_for(2000), dtype=np.int32), page_size=16)
    runs = runs_of_plan(plan, tokens, table)
    together: dict[str, Any] = {"table": table, "pool": pool, "rotary": model.rotary}
    pool.data.fill_(float("nan"))
    load_spans(plan, tokens, donors=donor, **together)
    want = compute(model, pool, runs)[0]
    kept = pool.read(table, 0, 2000)
    side = torch.cuda.Stream()
    error, same = 0.0, True
    # Three times: launched, recorded, replayed piece by piece.
    for _ in range(3):
        pool.data.fill_(float("nan"))
        with layerwise_spans(plan, tokens, donors=host, stream=side, **together) as load:
            got = compute(model, pool, runs, before_layer=load)[0]
        same &= torch.equal(kept, pool.read(table, 0, 2000))
        error = max(error, _error(got, want.double()))
    return [
        at_most("hit from the host, layer by layer", "logit_error", error, 1e-6, "of norm"),
        at_most("hit from the host, layer by layer", "different_kv", float(not same), 0.0),
    ]


def _check_decode(
    plain: Any, exact: Any, model: LoadedModel, pool: PagedPool, tokens: Any
) -> list[Figure]:
    """The next token of three requests from a recorded graph, compared with the fp32 model.

    A graph of four rows and a pass of three use different matrix kernels, whose rounding
    differs. What counts is that neither is further from the truth than plain bf16 is.
    """
    worst, theirs = 0.0, 0.0
    for step in range(4):
        runs = []
        for number in range(3):
            pages = np.arange(80, dtype=np.int32) + 80 * number
            table = PageTable(pages=pages, page_size=16)
            if step == 0:
                compute(model, pool, cold_run(tokens[: 900 + number], table))
            start = 900 + number + step
            runs.append(
                ComputeRun(tokens=tokens[start : start + 1], start=start, table=table, logit_rows=1)
            )
        for run, logits in zip(runs, compute(model, pool, runs), strict=True):
            ids = torch.from_numpy(tokens[: run.start + 1].astype(np.int64)).cuda()[None]
            want = exact(ids, logits_to_keep=1).logits[0, -1].double()
            worst = max(worst, _error(logits, want))
            theirs = max(theirs, _error(plain(ids, logits_to_keep=1).logits[0, -1], want))
    case = "decode by graph, three requests"
    return [at_most(case, "logit_error", worst, 1.5 * theirs, "of norm")]


def _error(value: torch.Tensor, want: torch.Tensor) -> float:
    error = float((value.double() - want).norm() / want.norm())
    return error if error == error else float("inf")
