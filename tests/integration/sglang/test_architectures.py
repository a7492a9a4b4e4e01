"""Every model kind that is said to work: holes are the model's own, moved K is the model's own."""

from __future__ import annotations

import pytest
import torch

from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DONOR, TARGET


@pytest.mark.parametrize("model", ["qwen2", "qwen3", "llama-yarn", "qwen3-moe"])
def test_moved_keys_and_computed_holes_are_the_models_own(make_engine, model):
    engine = make_engine(model)
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    own = engine.kv(cold, 0, len(TARGET))
    warm = engine.run(TARGET)
    (span,) = engine.call(probes.copies_of, warm.request_id)
    assert (span.donor_start, span.target_start) == (50, 110)
    placed = engine.kv(warm, 0, len(TARGET))
    # On layer 0, K/V depends on the token and its position alone.
    torch.testing.assert_close(placed[0], own[0], atol=2e-4, rtol=1e-3)
    # In front of the first span nothing is approximate, on any layer.
    torch.testing.assert_close(placed[:, :, :110], own[:, :, :110], atol=1e-4, rtol=1e-4)
    engine.call(probes.rewrite_plans, "all_holes")
    computed = engine.run(TARGET)
    assert computed.tokens == cold.tokens
    torch.testing.assert_close(engine.kv(computed, 0, len(TARGET)), own, atol=1e-4, rtol=1e-4)
    engine.assert_no_leak()
