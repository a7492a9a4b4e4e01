"""Requests that wait, and requests that SGLang takes back and starts again later."""

from __future__ import annotations

import pytest

from tests.integration.models import joined, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DONOR, mixed_requests

SERVER = {"max_running_requests": 8, "schedule_policy": "lpm"}
"""lpm matches the whole queue at every step."""


def test_a_waiting_queue_is_planned_once_and_again_only_within_a_ration(make_engine):
    engine = make_engine("one-layer", server=SERVER)
    _, requests = mixed_requests(40)
    engine.donate(DONOR)
    engine.call(probes.count_plans)
    engine.forwards()
    engine.run_all(requests, max_tokens=2)
    plans, matches = engine.call(probes.counted_plans)
    assert matches > 2 * len(requests), "SGLang asks again and again"
    assert len(requests) <= plans <= len(requests) + 8 * len(engine.forwards())
    engine.assert_no_leak()


def test_retracted_requests_are_planned_again_and_counted_once(make_engine):
    """One layer, so reuse is lossless and answers must be the cold ones."""
    engine = make_engine("one-layer", server=SERVER)
    engine.donate(DONOR)
    prompts = [
        joined(random_tokens(40 + n, seed=n), DONOR[50:470], random_tokens(5, seed=90 + n))
        for n in range(6)
    ]
    cold = [engine.cold(prompt, max_tokens=12) for prompt in prompts]
    before = engine.counts()
    engine.call(probes.retract_now, True)
    try:
        answers = engine.run_all(prompts, max_tokens=12)
    finally:
        engine.call(probes.retract_now, False)
    assert engine.call(probes.retractions, [a.request_id for a in answers]) > 0
    for answer, expected in zip(answers, cold, strict=True):
        assert answer.tokens == expected.tokens
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=2e-4)
        assert answer.semblend["outcome"] == "materialised"
    after = engine.counts()
    assert after["requests:materialised"] - before.get("requests:materialised", 0) == 6
    engine.assert_no_leak()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_donor_is_known_exactly_while_the_tree_holds_it(make_engine, page_size):
    """A pool for few of many prompts, some of them beginnings of others."""
    engine = make_engine("one-layer", server={"max_total_tokens": 1600, "page_size": page_size})
    engine.flush()
    engine.call(probes.remember_donors)
    whole = [random_tokens(300, seed=n) for n in range(9)]
    for n, prompt in enumerate((*whole, *whole[:3])):
        both = [prompt[: 90 + 40 * (n % 5)], prompt]
        engine.run_all(both, max_tokens=2)
        known, held = engine.call(probes.known_and_held)
        assert known <= held, "nothing stale is ever known"
        # What came back as part of something longer was not computed as a prompt of its own.
        asked = {one[: len(one) // page_size * page_size].tobytes() for one in both}
        assert asked & held <= known, "and nothing that is held is forgotten"
    assert known
    assert engine.counts()["donors_evicted"] > 0, "the pool was too small for all"
    engine.assert_no_leak()
