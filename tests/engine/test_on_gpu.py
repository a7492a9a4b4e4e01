"""What only a GPU can show: compiled passes, recorded graphs, streams that overlap."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest
import torch

from semblend.core.plan import Hole, Span
from semblend.engine.batch import ComputeRun
from semblend.engine.materialise import layerwise_spans, load_spans
from semblend.engine.model import LoadedModel, wrap_model
from semblend.engine.segmented import compute, runs_of_plan
from semblend.engine.streams import SideStream
from semblend.kv.layerwise import LayerwiseLoad
from semblend.kv.span_batch import SpanCopy
from tests.engine.donors import DonorShelf, cold_kv, hand_plan, make_pool, make_table
from tests.engine.models import FUSED, plain_model, random_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no NVIDIA GPU: passes on a device are NOT tested"
    ),
]


def on_gpu(
    architecture: str, dtype: torch.dtype = torch.bfloat16
) -> tuple[LoadedModel, torch.nn.Module]:
    """The same bf16 weights twice: with our passes, and plain in float32."""
    model = plain_model(architecture, head_dim=16).bfloat16().to(dtype)
    plain = plain_model(architecture, head_dim=16).bfloat16().float().cuda()
    return wrap_model(model.cuda(), name=architecture), plain


def error_of(logits: torch.Tensor, want: torch.Tensor) -> float:
    return float((logits.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 4e-2), (torch.float32, 1e-5)])
@pytest.mark.parametrize("scatter", [None, 3])
@pytest.mark.parametrize("cuts", [[], [7, 20, 33, 34, 60, 77], list(range(1, 90))])
@pytest.mark.parametrize("architecture", FUSED)
def test_holes_on_the_gpu_are_a_plain_prefill(architecture, cuts, scatter, dtype, bound) -> None:
    model, plain = on_gpu(architecture, dtype)
    assert model.passes is not None
    pool, tokens = make_pool(model), random_tokens(90, 1)
    pool.data.fill_(float("nan"))
    table = make_table(pool, 90, scatter)
    edges = [0, *cuts, 90]
    runs = [
        ComputeRun(tokens=tokens[a:b], start=a, table=table, logit_rows=int(b == 90))
        for a, b in pairwise(edges)
    ]
    ids = torch.from_numpy(tokens.astype(np.int64)).cuda()[None]
    with torch.no_grad():
        want = plain(ids).logits[0, -1]
    # Three times: launched, recorded, replayed.
    for _ in range(3):
        assert error_of(compute(model, pool, runs)[0], want) <= bound


def test_decoding_by_graph_is_decoding_by_pass() -> None:
    model, _ = on_gpu("qwen2")
    pool, tokens = make_pool(model), random_tokens(60, 2)
    tables = [make_table(pool, 60) for _ in range(3)]
    for table in tables:
        compute(model, pool, [ComputeRun(tokens=tokens[:40], start=0, table=table)])
    for step in range(40, 46):
        runs = [
            ComputeRun(tokens=tokens[step : step + 1], start=step, table=table, logit_rows=1)
            for table in tables
        ]
        replayed = compute(model, pool, runs)
        launched = compute(model, pool, runs, replay=False)
        assert error_of(replayed, launched) <= 2e-2


def test_layers_from_pinned_memory_are_those_of_the_device() -> None:
    model, _ = on_gpu("llama-gqa")
    donor, tokens = random_tokens(60, 4), random_tokens(80, 5)
    tokens[5:45] = donor[20:60]
    kv = cold_kv(model, donor)
    span = Span(donor_id="d", donor_start=20, target_start=5, length=40)
    plan = hand_plan(tokens, [span], [Hole(20, 27)])
    pools = []
    for on_host in (False, True):
        shelf = DonorShelf()
        shelf.add("d", donor, kv, 16)
        if on_host:
            for piece in shelf.held["d"].pieces:
                object.__setattr__(piece, "kv", piece.kv.cpu().pin_memory())
        pool = make_pool(model)
        table = make_table(pool, 80)
        runs = runs_of_plan(plan, tokens, table)
        together = {"table": table, "pool": pool, "rotary": model.rotary, "donors": shelf}
        if on_host:
            side = SideStream(model.device).stream
            # Three times: launched, recorded, replayed piece by piece.
            for _ in range(3):
                pool.data.fill_(float("nan"))
                with layerwise_spans(plan, tokens, stream=side, **together) as load:
                    compute(model, pool, runs, before_layer=load)
        else:
            load_spans(plan, tokens, **together)
            compute(model, pool, runs, replay=False)
        pools.append(pool.read(table, 0, 80))
    assert torch.equal(pools[0], pools[1])


def test_a_load_that_is_given_up_writes_into_nobodys_memory() -> None:
    """Cancelled before its pass: the copies it has started arrive after it is gone."""
    model, _ = on_gpu("llama-gqa")
    pool = make_pool(model)
    layers, _, _, heads, dim = pool.by_slot.shape
    source = torch.ones((layers, 2, 60, heads, dim), dtype=pool.data.dtype).pin_memory()
    copy = SpanCopy(
        source=source,
        source_slots=np.arange(60),
        target_slots=np.arange(60),
        source_start=0,
        target_start=5,
    )
    side = torch.cuda.Stream()
    LayerwiseLoad(pool.data, [copy], model.rotary, stream=side)  # whatever is made only once
    gc.collect()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
    load = LayerwiseLoad(pool.data, [copy], model.rotary, stream=side)
    elements = load._staged[0][0]._base.numel()
    del load
    gc.collect()
    theirs = [torch.zeros(elements, dtype=pool.data.dtype, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert not any(bool(tensor.any()) for tensor in theirs)


def test_capture_waits_for_the_passes_before_its_mark() -> None:
    model, _ = on_gpu("llama-gqa")
    pool, tokens = make_pool(model), random_tokens(60, 2)
    table = make_table(pool, 60)
    side = SideStream(model.device)
    compute(model, pool, [ComputeRun(tokens=tokens, start=0, table=table)])
    mark = side.mark()
    with side.after(mark):
        kept = pool.read(table, 0, 60)
    torch.cuda.synchronize()
    assert torch.equal(kept, pool.read(table, 0, 60))
