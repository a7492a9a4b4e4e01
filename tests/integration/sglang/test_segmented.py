"""Segmented prefill in SGLang: exact where it must be, what the mathematics says elsewhere."""

from __future__ import annotations

import pytest

from tests.integration.sglang.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=1)
DONOR = joined(random_tokens(50, seed=2), DOCUMENT, random_tokens(20, seed=3))
TARGET = joined(random_tokens(110, seed=4), DOCUMENT, random_tokens(33, seed=5))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("one-layer")
    engine.flush()
    return engine


def test_one_layer_reuse_is_lossless_at_shifted_positions(engine):
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    engine.forwards()
    warm = engine.run(TARGET)
    print(warm, engine.forwards(), engine.counts())
    assert warm.semblend["outcome"] == "materialised"
    assert warm.tokens == cold.tokens
    assert warm.logprobs == pytest.approx(cold.logprobs, abs=1e-4)
    engine.assert_no_leak()
