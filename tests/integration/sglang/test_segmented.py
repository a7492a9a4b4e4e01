"""Segmented prefill in SGLang: exact where it must be, what the mathematics says elsewhere."""

from __future__ import annotations

import pytest
import torch

from tests.integration.models import joined, plain_model, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DONOR, TARGET
from tests.oracles.attention import lent_to, move_keys, segmented_forward


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    engine.call(probes.rewrite_plans, "as_they_are")
    engine.donate(DONOR)
    engine.forwards()
    return engine


@pytest.mark.parametrize("rewrite", ["all_holes", "holes_of_one_token"])
def test_a_region_that_is_all_holes_equals_cold(engine, rewrite):
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    engine.call(probes.rewrite_plans, rewrite)
    engine.forwards()
    warm = engine.run(TARGET)
    assert len(engine.forwards()) > 1, "the region was computed in passes of its own"
    assert warm.semblend["reason"] == "policy_declined", "nothing is claimed where all is computed"
    assert warm.tokens == cold.tokens
    torch.testing.assert_close(engine.kv(warm, 0, len(TARGET)), expected, atol=1e-4, rtol=1e-4)


def test_what_does_not_move_is_copied_bit_for_bit(engine):
    """The donor's own text behind an edit of equal length stays where it was."""
    edited = joined(random_tokens(50, seed=60), DONOR[50:], random_tokens(9, seed=61))
    lent = engine.call(probes.donor_kv, DONOR.tolist())
    warm = engine.run(edited)
    (span,) = engine.call(probes.copies_of, warm.request_id)
    assert span.delta == 0
    placed = engine.kv(warm, span.target_start, span.target_end)
    assert torch.equal(placed, torch.from_numpy(lent)[:, :, span.donor_start : span.donor_end])


def test_moved_spans_are_the_donor_rotated_and_nothing_else(engine):
    lent = torch.from_numpy(engine.call(probes.donor_kv, DONOR.tolist()))
    warm = engine.run(TARGET)
    (span,) = engine.call(probes.copies_of, warm.request_id)
    assert (span.donor_start, span.target_start) == (50, 110)
    placed = engine.kv(warm, span.target_start, span.target_end)
    source = lent[:, :, span.donor_start : span.donor_end]
    assert torch.equal(placed[:, 1], source[:, 1])
    rotated = move_keys(source[:, 0].double(), span.delta, 10_000.0)
    torch.testing.assert_close(placed[:, 0].double(), rotated, atol=3e-4, rtol=0)
    # On layer 0, K depends on the token and its position alone: the model's own K is there.
    own = engine.kv(engine.cold(TARGET), span.target_start, span.target_end)
    torch.testing.assert_close(placed[0, 0], own[0, 0], atol=1e-4, rtol=1e-4)


def test_holes_equal_an_independent_float64_reference(engine):
    lent = torch.from_numpy(engine.call(probes.donor_kv, DONOR.tolist())).double()
    warm = engine.run(TARGET)
    model = plain_model("llama")
    spans = engine.call(probes.copies_of, warm.request_id)
    theta = model.config.rope_parameters["rope_theta"]
    borrowed = lent_to(spans, {span.donor_id: lent for span in spans}, theta)
    expected = segmented_forward(model, TARGET, borrowed)
    got = engine.kv(warm, 0, len(TARGET)).double()
    torch.testing.assert_close(got[:, 0], expected.keys, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(got[:, 1], expected.values, atol=2e-3, rtol=1e-3)
    assert warm.tokens[0] == int(expected.logits[-1].argmax())
    first = expected.logits[-1].log_softmax(-1).max()
    assert warm.logprobs[0] == pytest.approx(float(first), abs=1e-3)


def test_the_forward_sees_holes_and_tail_and_nothing_else(engine):
    warm = engine.run(TARGET)
    seen = [item for forward in engine.forwards() for item in forward]
    assert seen == [(warm.request_id, 0, 110), (warm.request_id, 530, 33)]


def test_the_response_says_what_was_reused(engine):
    warm = engine.run(TARGET)
    said = warm.semblend
    assert said["outcome"] == "materialised"
    assert said["approximate"] is True
    assert said["certified"] is False
    assert said["hole_tokens"] == 110
    assert said["reused_tokens"] == warm.cached_tokens == 420
    assert engine.call(probes.open_requests) == 0
    cold = engine.cold(TARGET)
    assert cold.semblend["outcome"] == "cold"
    assert (cold.semblend["reused_tokens"], cold.cached_tokens) == (0, 0)


def test_many_donors_in_any_order_share_one_pass(engine):
    passages = [random_tokens(96 + 17 * n, seed=40 + n) for n in range(4)]
    for n, passage in enumerate(passages):
        engine.donate(joined(random_tokens(30, seed=60 + n), passage))
    parts = []
    for n, passage in enumerate(reversed(passages)):
        parts += [random_tokens(9, seed=80 + n), passage]
    target = joined(*parts, random_tokens(12, seed=99))
    engine.forwards()
    warm = engine.run(target)
    assert len(warm.semblend["donor_ids"]) == 4
    assert warm.semblend["reused_tokens"] > 400
    holes, tail = engine.forwards()
    assert len(holes) == 4, "four holes, one pass"
    assert sum(length for _, _, length in (*holes, *tail)) == len(target) - warm.cached_tokens
    engine.call(probes.rewrite_plans, "all_holes")
    assert engine.run(target).tokens == engine.cold(target).tokens


def test_a_backend_that_writes_after_attention_gets_one_hole_a_pass(engine):
    middle = random_tokens(9, seed=71)
    target = joined(TARGET[:110], DONOR[50:250], middle, DONOR[250:470], TARGET[-20:])
    together = engine.run(target)
    engine.call(probes.one_hole_a_pass, True)
    try:
        engine.forwards()
        apart = engine.run(target)
        passes = engine.forwards()
    finally:
        engine.call(probes.one_hole_a_pass, False)
    assert [len(sequences) for sequences in passes] == [1, 1, 1]
    assert apart.semblend["hole_tokens"] == together.semblend["hole_tokens"] > 110
    assert apart.tokens == together.tokens
    assert apart.logprobs == pytest.approx(together.logprobs, abs=1e-4)
