"""Every supported architecture and rotary kind, on the real engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from semblend.core.plan import Hole
from tests.integration.models import SERVED, joined, random_tokens

DOCUMENT = random_tokens(420, seed=71)
# Far apart, so that a wrong frequency shows; beyond what YaRN and llama3 were "trained" on.
DONOR = joined(random_tokens(50, seed=72), DOCUMENT, random_tokens(20, seed=73))
TARGET = joined(random_tokens(1200, seed=74), DOCUMENT, random_tokens(33, seed=75))


def all_holes(plan, tokens):
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


@pytest.mark.parametrize("name", [name for name in SERVED if name != "llama"])
def test_spans_move_as_the_model_rotates_and_holes_equal_cold(make_engine, name):
    engine = make_engine(name)
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    warm = engine.run(TARGET, hints={"capture": False})
    (span,) = engine.scheduler_connector.loads[-1].copies
    assert span.delta == 1150
    placed = engine.kv(warm, span.target_start, span.target_end)
    own = expected[:, :, span.target_start : span.target_end]
    # K of layer 0 depends on token and position alone: it must be the model's own.
    torch.testing.assert_close(placed[0, 0], own[0, 0], atol=5e-4, rtol=1e-4)
    torch.testing.assert_close(placed[0, 1], own[0, 1], atol=5e-4, rtol=1e-4)
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(TARGET, hints={"capture": False})
    assert everything.tokens == cold.tokens
    torch.testing.assert_close(
        engine.kv(everything, 0, len(TARGET)), expected, atol=5e-4, rtol=1e-3
    )


def test_bfloat16_moves_k_within_its_rounding(make_engine):
    engine = make_engine("llama", engine={"dtype": "bfloat16"})
    target = joined(random_tokens(110, seed=76), DOCUMENT, random_tokens(33, seed=77))
    engine.donate(DONOR)
    cold = engine.cold(target)
    expected = engine.kv(cold, 0, len(target)).float()
    warm = engine.run(target, hints={"capture": False})
    (span,) = engine.scheduler_connector.loads[-1].copies
    placed = engine.kv(warm, span.target_start, span.target_end).float()
    own = expected[0, 0, span.target_start : span.target_end]
    scale = own.abs().max()
    assert (placed[0, 0] - own).abs().max() / scale < 2e-2
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(target, hints={"capture": False})
    got = engine.kv(everything, 0, len(target)).float()
    assert everything.tokens == cold.tokens
    assert (got - expected).abs().max() / expected.abs().max() < 2e-2
