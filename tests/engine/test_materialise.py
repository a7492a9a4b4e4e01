"""Reused spans: rotated copies of the donor, with everything else computed over them exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend.core.errors import DonorError, PlanError
from semblend.core.plan import Hole, Plan, Span
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import load_spans
from semblend.engine.model import LoadedModel, wrap_model
from semblend.engine.segmented import compute, runs_of_plan
from tests.engine.donors import DonorShelf, cold_kv, hand_plan, make_pool, make_table
from tests.engine.models import (
    ARCHITECTURES,
    ROPE_KINDS,
    plain_kv,
    plain_logits,
    plain_model,
    random_tokens,
    tiny,
)
from tests.oracles.attention import lent_to, rotating, segmented_forward

FIRST, SECOND = random_tokens(60, 11), random_tokens(50, 12)


def shelf_for(model: LoadedModel, piece_tokens: int = 16) -> DonorShelf:
    shelf = DonorShelf()
    shelf.add("first", FIRST, cold_kv(model, FIRST), piece_tokens)
    shelf.add("second", SECOND, cold_kv(model, SECOND), piece_tokens)
    return shelf


def target_and_plan(recompute: list[Hole] | None = None) -> tuple[TokenArray, Plan]:
    """A new head, the second donor's middle, a seam, the first donor's, and a question."""
    tokens = np.concatenate(
        (
            random_tokens(9, 21),
            SECOND[5:40],
            random_tokens(3, 22),
            FIRST[10:50],
            random_tokens(7, 23),
        )
    )
    spans = [
        Span(donor_id="first", donor_start=10, target_start=47, length=40),
        Span(donor_id="second", donor_start=5, target_start=9, length=35),
    ]
    return tokens, hand_plan(tokens, spans, recompute)


def run_plan(
    model: LoadedModel, shelf: DonorShelf, tokens: TokenArray, plan: Plan, seed: int | None = None
) -> tuple[torch.Tensor, PagedPool, PageTable]:
    pool = make_pool(model)
    table = make_table(pool, len(tokens), seed)
    load_spans(plan, tokens, table=table, pool=pool, rotary=model.rotary, donors=shelf)
    return compute(model, pool, runs_of_plan(plan, tokens, table))[0], pool, table


@pytest.mark.parametrize("scatter", [None, 4])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spans_are_the_rotated_donor(architecture: str, scatter: int | None) -> None:
    model, plain = tiny(architecture)
    tokens, plan = target_and_plan()
    _, pool, table = run_plan(model, shelf_for(model), tokens, plan, scatter)
    cos, sin = plain.model.rotary_emb(torch.zeros(1, 1), torch.arange(512)[None])
    width = cos.shape[-1]
    half = width // 2
    turn = torch.complex(cos[0, :, :half].double(), sin[0, :, :half].double())
    for span in plan.spans:
        donor = cold_kv(model, FIRST if span.donor_id == "first" else SECOND)
        donor = donor[:, :, span.donor_start : span.donor_end]
        placed = pool.read(table, span.target_start, span.target_end)
        assert torch.equal(placed[:, 1], donor[:, 1])
        keys = torch.complex(
            donor[:, 0, :, :, :half].double(), donor[:, 0, :, :, half:width].double()
        )
        step = turn[span.target_start : span.target_end] / turn[span.donor_start : span.donor_end]
        moved = keys * step[:, None]
        expected = torch.cat((moved.real, moved.imag, donor[:, 0, :, :, width:]), dim=-1)
        assert (placed[:, 0] - expected).abs().max() <= 1e-6 * expected.abs().max()


RECOMPUTE = {"none": [], "heads": [Hole(9, 13), Hole(47, 51)], "middle": [Hole(20, 30)]}


@pytest.mark.parametrize("recompute", RECOMPUTE.values(), ids=RECOMPUTE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_holes_over_spans_are_the_float64_reference(
    architecture: str, recompute: list[Hole]
) -> None:
    model, plain = tiny(architecture)
    tokens, plan = target_and_plan(recompute)
    logits, pool, table = run_plan(model, shelf_for(model), tokens, plan)
    donors = {"first": segmented_forward(plain, FIRST), "second": segmented_forward(plain, SECOND)}
    lent = {name: torch.stack((cold.keys, cold.values), dim=1) for name, cold in donors.items()}
    theta, width = plain.config.rope_parameters["rope_theta"], rotating(plain.config)
    expected = segmented_forward(plain, tokens, lent_to(plan.copies, lent, theta, width))
    assert (logits - expected.logits[-1]).abs().max() <= 1e-4
    kv = pool.read(table, 0, len(tokens))
    assert (kv[:, 0] - expected.keys).abs().max() <= 1e-4
    assert (kv[:, 1] - expected.values).abs().max() <= 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_oracle_without_spans_is_a_plain_prefill(architecture: str) -> None:
    _, plain = tiny(architecture)
    assert (
        segmented_forward(plain, FIRST).logits[-1] - plain_logits(plain, FIRST)
    ).abs().max() <= 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reuse_that_does_not_move_equals_cold(architecture: str) -> None:
    model, plain = tiny(architecture)
    tokens = np.concatenate((FIRST[:40], random_tokens(12, 9)))
    span = Span(donor_id="first", donor_start=0, target_start=0, length=40)
    logits, pool, table = run_plan(model, shelf_for(model), tokens, hand_plan(tokens, [span]))
    assert (logits - plain_logits(plain, tokens)).abs().max() <= 1e-4
    assert (pool.read(table, 0, 52) - plain_kv(plain, tokens)).abs().max() <= 1e-4
    assert torch.equal(pool.read(table, 0, 40), cold_kv(model, FIRST)[:, :, :40])


@pytest.mark.parametrize("kind", ROPE_KINDS)
def test_layer_zero_of_a_moved_span_is_what_cold_computes_there(kind: str) -> None:
    """K/V of layer 0 depends on token and position alone, so moving it must be exact."""
    model = wrap_model(plain_model("llama-gqa", rope_parameters=ROPE_KINDS[kind]), name=kind)
    tokens, plan = target_and_plan()
    _, pool, table = run_plan(model, shelf_for(model), tokens, plan)
    moved, cold = pool.read(table, 0, len(tokens))[0], cold_kv(model, tokens)[0]
    assert (moved - cold).abs().max() <= 1e-5 * cold.abs().max()


def test_bfloat16_answers_as_plain_bfloat16() -> None:
    plain = plain_model("qwen3").bfloat16()
    model = wrap_model(plain_model("qwen3").bfloat16(), name="half")
    tokens, plan = target_and_plan([Hole(9, 44), Hole(47, 87)])  # all of it computed
    logits, _, _ = run_plan(model, shelf_for(model), tokens, plan)
    expected = plain_logits(plain, tokens)
    exact = segmented_forward(plain, tokens).logits[-1]
    # Both round; ours must not be further from the truth than plain bfloat16 is.
    assert (logits - exact).abs().max() <= 2 * (expected - exact).abs().max()


def test_recomputing_every_reused_token_equals_cold() -> None:
    model, plain = tiny("llama-gqa")
    tokens, plan = target_and_plan([Hole(9, 44), Hole(47, 87)])
    assert plan.reused_tokens == 0
    logits, _, _ = run_plan(model, shelf_for(model), tokens, plan)
    assert (logits - plain_logits(plain, tokens)).abs().max() <= 1e-4


def test_how_a_donor_is_cut_into_pieces_changes_nothing() -> None:
    model, _ = tiny("llama-gqa")
    tokens, plan = target_and_plan()
    results = [run_plan(model, shelf_for(model, size), tokens, plan)[0] for size in (1, 7, 64)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_donor_with_other_tokens_is_never_loaded() -> None:
    model, _ = tiny("llama-gqa")
    tokens, plan = target_and_plan()
    shelf = shelf_for(model)
    shelf.add("first", SECOND, cold_kv(model, SECOND), 16)
    with pytest.raises(DonorError, match="does not hold the planned tokens"):
        run_plan(model, shelf, tokens, plan)


def test_a_donor_that_lost_a_piece_is_never_loaded_in_part() -> None:
    model, _ = tiny("llama-gqa")
    tokens, plan = target_and_plan()
    shelf = shelf_for(model)
    donor = shelf.held["first"]
    object.__setattr__(donor, "pieces", donor.pieces[:1] + donor.pieces[2:])
    with pytest.raises(DonorError, match="planned, donors supplied"):
        run_plan(model, shelf, tokens, plan)


@pytest.mark.parametrize("prompt_tokens", [94, 86], ids=["whole prompt", "prompt as short"])
def test_a_donor_that_ends_inside_a_span_is_never_loaded(prompt_tokens: int) -> None:
    model, _ = tiny("llama-gqa")
    tokens, plan = target_and_plan()
    shelf = shelf_for(model)
    shelf.add("first", FIRST[:49], cold_kv(model, FIRST[:49]), 16)
    with pytest.raises(DonorError, match="does not hold the planned tokens"):
        run_plan(model, shelf, tokens[:prompt_tokens], plan)


def test_a_table_without_room_for_the_plan_is_refused() -> None:
    model, _ = tiny("llama-gqa")
    tokens, plan = target_and_plan()
    pool = make_pool(model)
    table = make_table(pool, plan.end - pool.page_size)
    with pytest.raises(PlanError, match="target slots, got"):
        load_spans(
            plan, tokens, table=table, pool=pool, rotary=model.rotary, donors=shelf_for(model)
        )
