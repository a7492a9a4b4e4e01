"""What probes tell dynamic policies, against plain computations of the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import semblend.engine.scheduler as scheduler_module
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Hole, Plan, Span
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import load_spans
from semblend.engine.probes import PoolProbe
from semblend.engine.segmented import compute
from semblend.engine.vocabulary_boundaries import boundaries_of
from semblend.kv.attention_weights import attention_weights
from tests.engine.conftest import EngineMaker, same
from tests.engine.donors import DonorShelf, cold_kv, hand_plan
from tests.engine.models import random_tokens, tiny
from tests.engine.shared_kv import assert_shared_kv_is_cold
from tests.oracles.deviation import token_deviation

DONOR = random_tokens(90, 1)
TARGET = np.concatenate((random_tokens(11, 2), DONOR[8:80], random_tokens(7, 3)))
SPAN = Span(donor_id="d", donor_start=8, target_start=11, length=72)


def probe(recompute: list[Hole] | None = None) -> tuple[PoolProbe, DonorShelf]:
    model, _ = tiny("llama-gqa")
    shelf = DonorShelf()
    shelf.add("d", DONOR, cold_kv(model, DONOR), 16)
    plan = hand_plan(TARGET, [SPAN], recompute or [])
    pool = PagedPool(
        model.kv_shape,
        capacity_bytes=model.kv_shape.token_bytes * 128,
        page_size=4,
        device=model.device,
    )
    table = PageTable(pages=pool.allocator.allocate(32), page_size=4)
    load_spans(plan, TARGET, table=table, pool=pool, rotary=model.rotary, donors=shelf)
    return PoolProbe(model=model, pool=pool, table=table, tokens=TARGET, plan=plan), shelf


def test_deviation_is_what_a_cold_prefill_shows_over_the_first_layers() -> None:
    found, shelf = probe()
    full = token_deviation(found.model, found.plan, TARGET, shelf)[1:2]
    expected = full.mean(dim=(0, 1)).numpy()
    scores = found.deviation(2)
    assert scores[SPAN.target_start : SPAN.target_end] == pytest.approx(
        expected[SPAN.target_start : SPAN.target_end], rel=1e-3, abs=1e-6
    )
    assert scores[:11].max() == scores[-7:].max() == 0.0
    assert found.computed == pytest.approx(len(TARGET) * 2 / 3)


def test_the_tails_attention_adds_up_to_all_of_it() -> None:
    found, _ = probe()
    mass = found.tail_attention()
    layers, heads, queries = 2, 6, 4  # the later half of three layers
    assert mass.sum() == pytest.approx(layers * heads * queries, rel=1e-4)
    assert mass.min() >= 0


def test_a_probe_leaves_what_is_copied_untouched() -> None:
    found, _ = probe([Hole(30, 40)])
    copied = [(s.target_start, s.target_end) for s in found.plan.copies]
    before = [found.pool.read(found.table, *ends).clone() for ends in copied]
    found.tail_attention()
    found.deviation(3)
    found.edit_attention(3)
    for ends, old in zip(copied, before, strict=True):
        assert torch.equal(found.pool.read(found.table, *ends), old)


def test_attention_to_edits_is_a_share_and_zero_before_them() -> None:
    model, _ = tiny("llama-gqa")
    found, _ = probe()
    mass = found.edit_attention(2)
    assert model.kv_shape.layers == 3
    # Tokens before the span are themselves what no span covers: they attend to nothing else.
    assert mass[:11] == pytest.approx(1.0, abs=1e-5)
    assert (mass[11:83] < 1.0).all()
    assert (mass[11:83] > 0.0).all()


def test_weights_are_causal_and_sum_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, 8, generator=generator)
    keys = torch.randn(10, 2, 8, generator=generator)
    weights = attention_weights(query, keys, first=5)
    assert weights.shape == (6, 3, 10)
    assert torch.allclose(weights.sum(-1), torch.ones(6, 3))
    assert float(weights[:, 0, 6:].sum()) == 0.0
    # A window of four, itself included: position 5 sees 2 to 5.
    windowed = attention_weights(query, keys, first=5, window=4)
    assert torch.allclose(windowed.sum(-1), torch.ones(6, 3))
    assert float(windowed[:, 0, :2].sum()) == 0.0
    assert (windowed[:, 0, 2:6] > 0.0).all()


@pytest.mark.parametrize(
    "policy",
    [
        "query_attention(0.3, 8)",
        "kv_deviation(0.3, 2, 8)",
        "edit_dependents(1, 1, 8, 0.3)",
        "span_head(4) + query_attention(0.2, 8)",
    ],
)
def test_the_engine_carries_dynamic_policies_out(make_engine: EngineMaker, policy: str) -> None:
    driver = make_engine()
    passage = random_tokens(200, 7)
    driver.run(np.concatenate((random_tokens(20, 8), passage)))
    prompt = np.concatenate((random_tokens(9, 9), passage, random_tokens(6, 10)))
    warm = driver.run(prompt, policy=policy)
    assert warm.report.outcome is Outcome.MATERIALISED
    report = warm.report
    assert report.reused_tokens + report.computed_tokens == len(prompt)
    if not policy.startswith("edit_dependents"):  # which leaves moved text alone
        assert 0 < report.recomputed_tokens <= 0.3 * 200 + 4 + 8
    assert not report.certified


def as_it_is(plan: Plan, *args: Any, **options: Any) -> Plan:
    """Foresees nothing."""
    return plan


def test_recomputing_everything_the_question_looks_at_is_cold(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    passage = random_tokens(120, 11)
    driver.run(np.concatenate((random_tokens(20, 12), passage)))
    prompt = np.concatenate((random_tokens(9, 13), passage, random_tokens(6, 14)))
    foreseen = driver.run(prompt, policy="query_attention(1.0, 8)", donate=False)
    assert foreseen.report.reason is DeclineReason.NOT_WORTH_IT  # and no probe has run
    driver.engine.flush_prefix_cache()
    monkeypatch.setattr("semblend.planning.planner.with_probe_cost", as_it_is)
    warm = driver.run(prompt, policy="query_attention(1.0, 8)")
    assert warm.report.reused_tokens == 0
    assert warm.report.reason is DeclineReason.POLICY_DECLINED
    assert same(warm, driver.cold(prompt), tolerance=1e-4)
    assert_shared_kv_is_cold(driver.engine)


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        # A block is larger than the budget: nothing is added, and only the next token is wanted.
        ("query_attention(0.1, 64)", 1),
        # One block of two spans, the tail, and the hole between them if it lies behind the block.
        ("query_attention(0.04, 8)", 8 + 30 + 6),
    ],
)
def test_what_a_probe_computed_is_not_computed_again(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, policy: str, most: int
) -> None:
    driver = make_engine()
    passages = [random_tokens(120, seed) for seed in (7, 17)]
    for number, passage in enumerate(passages):
        driver.run(np.concatenate((random_tokens(20, 8 + 10 * number), passage)))
    prompt = np.concatenate(
        (
            random_tokens(50, 9),
            passages[0],
            random_tokens(30, 19),
            passages[1],
            random_tokens(6, 10),
        )
    )
    passes: list[int] = []

    def counting(model: Any, pool: Any, runs: list[ComputeRun], **options: Any) -> torch.Tensor:
        passes.append(sum(len(run.tokens) for run in runs))
        return compute(model, pool, runs, **options)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "compute", counting)
        warm = driver.run(prompt, policy=policy, donate=False)
    assert warm.report.outcome is Outcome.MATERIALISED
    assert passes[0] <= most
    # The same choice, with everything computed after the probe.
    monkeypatch.setattr(PoolProbe, "tail_attention", _unfilled(PoolProbe.tail_attention))
    assert same(warm, driver.run(prompt, policy=policy, donate=False), tolerance=1e-4)


def _unfilled(look: Any) -> Any:
    def tail_attention(self: PoolProbe) -> Any:
        scores = look(self)
        self.filled = False
        return scores

    return tail_attention


def test_a_model_without_a_tokenizer_knows_no_boundaries() -> None:
    assert boundaries_of(None) is None
