"""With torch.compile on, the nested pass runs the compiled model, whatever its shape."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import torch

from semblend.core.plan import Hole
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=111)
DONOR = joined(random_tokens(50, seed=112), DOCUMENT, random_tokens(20, seed=113))
TARGET = joined(random_tokens(110, seed=114), DOCUMENT, random_tokens(33, seed=115))


def all_holes(plan, tokens):
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


def test_a_compiled_engine_reuses_and_all_holes_equal_cold(make_engine):
    engine = make_engine("llama", engine={"enforce_eager": False})
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    warm = engine.run(TARGET, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(TARGET, hints={"capture": False})
    assert everything.tokens == cold.tokens
    torch.testing.assert_close(
        engine.kv(everything, 0, len(TARGET)), expected, atol=1e-3, rtol=1e-3
    )


def test_policies_that_look_see_the_queries_of_compiled_code(make_engine):
    """They choose the same tokens as they do when the model runs eagerly."""
    engine = make_engine("llama", engine={"enforce_eager": False})
    engine.forget_prefixes()
    engine.forget_donors()
    engine.donate(DONOR)
    seen = {}
    for compiled in (True, False):
        with patch.object(engine.worker.nested, "serving", lambda: None):
            engine.worker.nested._skip_compiled = not compiled
            answer = engine.run(TARGET, hints={"policy": "query_attention(0.2)", "capture": False})
        assert answer.semblend["recomputed_tokens"] > 32
        kv = engine.kv(answer, 0, len(TARGET))
        seen[compiled] = (answer.tokens, answer.semblend["recomputed_tokens"], kv)
        engine.forget_prefixes()
    assert seen[True][:2] == seen[False][:2]
    torch.testing.assert_close(seen[True][2], seen[False][2], atol=1e-3, rtol=1e-3)
