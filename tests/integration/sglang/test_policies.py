"""Policies that look at the model's work get their probe, wherever the tail has to run."""

from __future__ import annotations

import pytest

from tests.integration.models import joined, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DOCUMENT, DONOR, TARGET, mixed_requests

PROBING = "semblend.integration.worker.policy_probe"
POLICY = "query_attention(0.25)"
LONG_TAIL = joined(random_tokens(110, seed=4), DOCUMENT, random_tokens(300, seed=6))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    engine.call(probes.set_policy, POLICY)
    engine.call(probes.without_foresight)  # short prompts, on which a probe does not pay
    engine.donate(DONOR)
    engine.forwards()
    return engine


def test_the_tail_is_asked_and_what_it_looks_at_is_computed(engine):
    warm = engine.run(TARGET)
    said = warm.semblend
    assert (said["outcome"], said["policy"]) == ("materialised", "query_attention(0.25, 16, 'all')")
    assert 64 <= said["recomputed_tokens"] <= 112
    assert said["reused_tokens"] + said["recomputed_tokens"] == 420
    assert warm.cached_tokens == said["reused_tokens"]
    asked, chosen, tail = engine.forwards()
    assert [item[1:] for item in asked] == [(0, 110), (530, 33)]
    assert [item[1:] for item in tail] == [(530, 33)]
    assert sum(length for _, _, length in chosen) == said["recomputed_tokens"]
    assert all(start >= 110 for _, start, _ in chosen), "holes in front were final already"
    engine.assert_no_leak()


def test_k_v_is_that_of_the_refined_plan_computed_at_once(engine):
    """What the probe left behind and what was computed after it is one consistent region."""
    warm = engine.run(TARGET)
    kept = engine.kv(warm, 0, len(TARGET))
    holes = engine.call(probes.holes_of, warm.request_id)
    engine.call(probes.set_policy, "none")
    engine.call(probes.recompute_instead, [(hole.start, hole.end) for hole in holes])
    try:
        at_once = engine.run(TARGET)
    finally:
        engine.call(probes.rewrite_plans, "as_they_are")
    assert at_once.tokens == warm.tokens
    assert (kept - engine.kv(at_once, 0, len(TARGET))).abs().max() < 1e-4


def test_a_policy_that_recomputes_everything_is_cold(engine):
    cold = engine.cold(TARGET)
    engine.call(probes.set_policy, "query_attention(1.0)")
    answer = engine.run(TARGET)
    assert (answer.tokens, answer.cached_tokens) == (cold.tokens, 0)
    assert answer.semblend["reason"] == "policy_declined"
    assert not engine.call(probes.failures), "and nothing has failed"


def test_policies_that_need_a_probe_nobody_makes_are_declined(engine):
    engine.call(probes.set_policy, "kv_deviation(0.1)")
    answer = engine.run(TARGET)
    assert (answer.cached_tokens, answer.semblend["reason"]) == (0, "unsupported")
    assert "probe" in answer.semblend["detail"]


@pytest.mark.parametrize(
    "stage",
    [
        f"{PROBING}._tails_attention",
        f"{PROBING}.attention_weights",
        "semblend.integration.sglang.kv_pool.KvPool.read_layer",
    ],
)
def test_a_probe_that_fails_is_a_cold_prefill(engine, stage):
    cold = engine.cold(TARGET)
    with engine.broken(stage):
        answer = engine.run(TARGET)
    assert (answer.tokens, answer.cached_tokens) == (cold.tokens, 0)
    assert answer.semblend["outcome"] == "declined"
    assert engine.run(TARGET).semblend["outcome"] == "materialised"
    engine.assert_no_leak()


def test_a_prefill_graph_that_calls_no_module_keeps_no_probe_from_its_answer(engine):
    expected = engine.run(TARGET)
    engine.call(probes.with_prefill_graphs)
    try:
        answer = engine.run(TARGET)
        replayed = engine.call(probes.replays)
    finally:
        engine.call(probes.mend)
    assert replayed, "the graph was in use"
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend == {**expected.semblend}
    assert answer.tokens == expected.tokens
    assert not engine.call(probes.failures)


def test_layers_that_nobody_sees_run_are_no_probe(engine):
    cold = engine.cold(TARGET)
    engine.call(probes.hide_queries)
    try:
        answer = engine.run(TARGET)
    finally:
        engine.call(probes.mend)
    assert (answer.tokens, answer.cached_tokens) == (cold.tokens, 0)
    assert "not seen to run" in answer.semblend["detail"]


def test_requests_of_one_batch_are_asked_together_and_answered_as_alone(engine):
    donors, requests = mixed_requests(12)
    for donor in donors:
        engine.donate(donor)
    # Exact prefixes would differ between the two ways: what is computed alone is a donor.
    alone = [engine.run(one, hints={"donate": False}) for one in requests]
    together = engine.run_all(requests, hints={"donate": False})
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert any(answer.semblend["recomputed_tokens"] for answer in together)
    engine.assert_no_leak()


def test_requests_of_one_batch_are_asked_in_one_pass(engine):
    """Tails of three lengths, so that nobody's queries can be taken for another's."""
    tails = [random_tokens(tokens, seed=70 + tokens) for tokens in (33, 7, 2)]
    requests = [joined(random_tokens(60, seed=80 + n), DOCUMENT, t) for n, t in enumerate(tails)]
    alone = [engine.run(one) for one in requests]
    chosen = [engine.call(probes.holes_of, answer.request_id) for answer in alone]
    engine.forwards()
    together = engine.run_all(requests)
    asked, *again, tail = engine.forwards()
    assert [engine.call(probes.holes_of, answer.request_id) for answer in together] == chosen
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert sorted(item[1:] for item in asked) == [(0, 60)] * 3 + [(480, 2), (480, 7), (480, 33)]
    assert len({item[0] for forward in again for item in forward}) == 3
    assert len(tail) == 3


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_tail_longer_than_a_chunk_is_lent_slots_for_its_probe(engine, make_engine, page_size):
    """What the last queries look at does not depend on which step computes them."""
    whole = engine.run(LONG_TAIL)
    expected = engine.call(probes.holes_of, whole.request_id)
    chunked = make_engine(
        "llama",
        server={"chunked_prefill_size": 128, "page_size": page_size},
        max_hole_tokens_per_step=4096,
    )
    chunked.call(probes.set_policy, POLICY)
    chunked.call(probes.without_foresight)
    chunked.donate(DONOR)
    answer = chunked.run(LONG_TAIL)
    assert answer.semblend["outcome"] == "materialised"
    if page_size == 1:
        assert chunked.call(probes.holes_of, answer.request_id) == expected
        assert answer.tokens == whole.tokens
    assert 64 <= answer.semblend["recomputed_tokens"] <= 112
    assert chunked.call(probes.failures) == 0
    chunked.assert_no_leak()
