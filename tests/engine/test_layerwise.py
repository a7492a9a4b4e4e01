"""Loading layer by layer puts in place what loading at once does. The order is the GPU's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.core.plan import Hole, Span
from semblend.engine.materialise import layerwise_spans, load_spans
from semblend.engine.segmented import compute, runs_of_plan
from semblend.kv.layerwise import LayerwiseLoad, layer_chunks
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans
from tests.engine.donors import DonorShelf, cold_kv, hand_plan, make_pool, make_table
from tests.engine.models import random_tokens, tiny
from tests.kv.span_cases import small_case


@given(layers=st.integers(1, 200), most=st.integers(1, 8))
def test_chunks_cover_all_layers_and_begin_small(layers: int, most: int) -> None:
    chunks = layer_chunks(layers, most)
    assert [n for first, end in chunks for n in range(first, end)] == list(range(layers))
    assert chunks[0] == (0, 1)
    assert max(end - first for first, end in chunks) <= most


@pytest.mark.parametrize("piece_tokens", [7, 16, 64])
def test_layers_in_turn_give_what_all_at_once_gives(piece_tokens: int) -> None:
    model, _ = tiny("llama-gqa")
    donor = random_tokens(60, 4)
    tokens = random_tokens(80, 5)
    tokens[5:45], tokens[50:62] = donor[20:60], donor[3:15]
    shelf = DonorShelf()
    shelf.add("d", donor, cold_kv(model, donor), piece_tokens)
    plan = hand_plan(
        tokens,
        [
            Span(donor_id="d", donor_start=20, target_start=5, length=40),
            Span(donor_id="d", donor_start=3, target_start=50, length=12),
        ],
        [Hole(20, 27)],
    )
    results = []
    for layerwise in (False, True):
        pool = make_pool(model)
        pool.data.fill_(float("nan"))
        table = make_table(pool, 80, seed=2)
        runs = runs_of_plan(plan, tokens, table)
        if layerwise:
            with layerwise_spans(
                plan,
                tokens,
                table=table,
                pool=pool,
                rotary=model.rotary,
                donors=shelf,
                stream=None,
            ) as load:
                assert load.tokens == plan.reused_tokens
                logits = compute(model, pool, runs, before_layer=load)
        else:
            load_spans(plan, tokens, table=table, pool=pool, rotary=model.rotary, donors=shelf)
            logits = compute(model, pool, runs)
        results.append((logits, pool.read(table, 0, 80)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 20), max_size=6))
def test_spans_of_sources_in_any_order_arrive_layer_by_layer(seed: int, lengths: list[int]) -> None:
    case = small_case(seed, lengths)
    at_once, in_turn = case.pool.clone(), case.pool.clone()
    copied = copy_spans(at_once, case.copies, case.table)
    load = LayerwiseLoad(in_turn, case.copies, case.table)
    for layer in range(3):
        load(layer)
    assert load.tokens == copied
    assert torch.equal(in_turn, at_once)


def test_nothing_is_written_when_a_copy_does_not_fit() -> None:
    model, _ = tiny("llama-gqa")
    pool = make_pool(model)
    shelf = DonorShelf()
    donor = random_tokens(20, 4)
    shelf.add("d", donor, cold_kv(model, donor), 20)
    piece = shelf.held["d"].pieces[0]
    wrong = SpanCopy(
        source=piece.kv,
        source_slots=torch.arange(4).numpy(),
        target_slots=torch.tensor([3, 3, 4, 5]).numpy(),
        source_start=0,
        target_start=8,
    )
    before = pool.data.clone()
    with pytest.raises(PlanError):
        LayerwiseLoad(pool.data, [wrong], model.rotary)
    assert torch.equal(pool.data, before)
