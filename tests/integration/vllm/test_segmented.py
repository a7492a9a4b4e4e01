"""Segmented prefill in vLLM: exact where it must be, what the mathematics says elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from semblend.core.plan import Hole, Plan
from tests.integration.models import joined, plain_model, random_tokens
from tests.integration.vllm.probe import chopped
from tests.oracles.attention import lent_to, segmented_forward

DOCUMENT = random_tokens(420, seed=1)
DONOR = joined(random_tokens(50, seed=2), DOCUMENT, random_tokens(20, seed=3))
TARGET = joined(random_tokens(110, seed=4), DOCUMENT, random_tokens(33, seed=5))


def all_holes(plan: Plan, tokens: np.ndarray) -> Plan:
    """The same region with every token of it computed."""
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def test_a_region_that_is_all_holes_equals_cold(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    engine.rewrite = all_holes
    warm = engine.run(TARGET)
    (load,) = engine.scheduler_connector.loads[-1:]
    assert load.hole_tokens == load.end > 500
    assert load.reused_tokens == 0
    assert warm.tokens == cold.tokens
    torch.testing.assert_close(engine.kv(warm, 0, len(TARGET)), expected, atol=1e-4, rtol=1e-4)


def test_a_region_of_one_token_holes_equals_cold(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    engine.rewrite = all_holes
    engine.scheduler_connector.rewrite_load = chopped
    warm = engine.run(TARGET)
    assert len(engine.scheduler_connector.loads[-1].holes) > 500
    assert warm.tokens == cold.tokens
    torch.testing.assert_close(engine.kv(warm, 0, len(TARGET)), expected, atol=1e-4, rtol=1e-4)


def test_what_does_not_move_is_copied_bit_for_bit(engine):
    engine.donate(DONOR)
    cold = engine.cold(DONOR)
    expected = engine.kv(cold, 0, len(DONOR))
    warm = engine.run(DONOR)
    load = engine.scheduler_connector.loads[-1]
    assert load.reused_tokens == load.end == len(DONOR) - 1
    assert warm.tokens == cold.tokens
    assert torch.equal(engine.kv(warm, 0, load.end), expected[:, :, : load.end])
    assert not warm.semblend["approximate"]


def test_moved_spans_are_the_donor_rotated_and_nothing_else(engine):
    donor = engine.donate(DONOR)
    stored = engine.kv(donor, 50, 470)
    warm = engine.run(TARGET)
    (span,) = engine.scheduler_connector.loads[-1].copies
    assert (span.donor_start, span.target_start) == (50, 110)
    placed = engine.kv(warm, span.target_start, span.target_end)
    source = stored[:, :, : span.length]
    assert torch.equal(placed[:, 1], source[:, 1])
    table = engine.worker.loads._loader._table
    positions = torch.arange(span.length)
    rotated = table.rerotate(source[:, 0], positions + 50, positions + 110)
    torch.testing.assert_close(placed[:, 0], rotated, atol=1e-6, rtol=0)
    # On layer 0, K depends on the token and its position alone: the model's own K is there.
    cold = engine.cold(TARGET)
    own = engine.kv(cold, span.target_start, span.target_end)
    torch.testing.assert_close(placed[0, 0], own[0, 0], atol=1e-4, rtol=1e-4)


def test_holes_equal_an_independent_float64_reference(engine):
    donor = engine.donate(DONOR)
    lent = engine.kv(donor, 0, len(DONOR)).double()
    warm = engine.run(TARGET)
    load = engine.scheduler_connector.loads[-1]
    model = plain_model("llama")
    theta = model.config.rope_parameters["rope_theta"]
    borrowed = lent_to(load.copies, {span.donor_id: lent for span in load.copies}, theta)
    expected = segmented_forward(model, TARGET, borrowed)
    got = engine.kv(warm, 0, len(TARGET)).double()
    torch.testing.assert_close(got[:, 0], expected.keys, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(got[:, 1], expected.values, atol=2e-3, rtol=1e-3)
    assert warm.tokens[0] == int(expected.logits[-1].argmax())


def test_the_response_says_what_was_reused(engine):
    engine.donate(DONOR)
    warm = engine.run(TARGET)
    said = warm.semblend
    assert said["outcome"] == "materialised"
    assert said["approximate"] is True
    assert said["certified"] is False
    assert said["hole_tokens"] == 110
    assert said["reused_tokens"] == warm.cached_tokens, "what was computed is not called cached"
    assert engine.scheduler.planner.pipeline.ledger.totals().open_requests == 0


def test_many_donors_in_any_order(engine):
    passages = [random_tokens(96 + 17 * n, seed=40 + n) for n in range(4)]
    for n, passage in enumerate(passages):
        engine.donate(joined(random_tokens(30, seed=60 + n), passage))
    target = joined(
        *(part for n, p in enumerate(reversed(passages)) for part in (random_tokens(9, 80 + n), p)),
        random_tokens(12, seed=99),
    )
    warm = engine.run(target)
    load = engine.scheduler_connector.loads[-1]
    assert len({span.donor_id for span in load.copies}) == 4
    assert warm.semblend["reused_tokens"] > 400
    engine.rewrite = all_holes
    assert engine.run(target).tokens == engine.cold(target).tokens
