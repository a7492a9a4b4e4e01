"""One layer: K/V of a token depends on the token and its position alone, so reuse is lossless.

Whatever is planned, batched, cut or evicted, answers must be the plain engine's.
"""

from __future__ import annotations

import pytest

from tests.integration.sglang.engines import Engine
from tests.integration.sglang.prompts import DONOR, TARGET, mixed_requests

SERVERS = {
    "one token a page": {},
    "16 tokens a page, chunks of 128": {"page_size": 16, "chunked_prefill_size": 128},
    "a pool that evicts": {"max_total_tokens": 1600, "max_running_requests": 6},
}


@pytest.fixture(scope="module")
def plain():
    """What plain SGLang answers to the mixed requests, and to the target."""
    _, requests = mixed_requests()
    engine = Engine("one-layer", server={"radix_cache_backend": None})
    try:
        return engine.run_all(requests), engine.run(TARGET)
    finally:
        engine.close()


@pytest.mark.parametrize("server", SERVERS)
def test_mixed_concurrent_requests_equal_the_plain_engine(make_engine, plain, server):
    donors, requests = mixed_requests()
    engine = make_engine("one-layer", server=SERVERS[server])
    for donor in donors:
        engine.donate(donor)
    answers = engine.run_all(requests)
    counts = engine.counts()
    for answer, expected in zip(answers, plain[0], strict=True):
        assert answer.tokens == expected.tokens
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=2e-4)
    materialised = sum(a.semblend.get("outcome") == "materialised" for a in answers)
    assert materialised == counts["requests:materialised"]
    if "evicts" in server:
        assert counts["donors_evicted"] > 0
        assert materialised > 0
    else:
        assert materialised >= 20
    assert counts.get("load_failures", 0) == 0
    engine.assert_no_leak()


def test_shifted_spans_are_lossless(make_engine, plain):
    engine = make_engine("one-layer", server=SERVERS["a pool that evicts"])
    engine.flush()
    engine.donate(DONOR)
    warm = engine.run(TARGET)
    assert warm.semblend["outcome"] == "materialised"
    assert (warm.semblend["hole_tokens"], warm.semblend["reused_tokens"]) == (110, 420)
    assert warm.tokens == plain[1].tokens
    assert warm.logprobs == pytest.approx(plain[1].logprobs, abs=1e-4)
