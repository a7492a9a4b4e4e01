"""Two ranks in processes of their own: the same answers as one, and no rank goes its own way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semblend.core.plan import Hole
from tests.integration.models import joined, random_tokens
from tests.integration.vllm.engines import transfer_config

DOCUMENT = random_tokens(420, seed=101)
DONOR = joined(random_tokens(50, seed=102), DOCUMENT, random_tokens(20, seed=103))
TARGET = joined(random_tokens(110, seed=104), DOCUMENT, random_tokens(33, seed=105))


def all_holes(plan, tokens):
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


def answers(engine):
    """Cold, with reuse, and with a region that is all holes."""
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    warm = engine.run(TARGET, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(TARGET, hints={"capture": False})
    engine.rewrite = None
    engine.forget_prefixes()
    asking = engine.run(TARGET, hints={"policy": "query_attention(0.2)", "capture": False})
    engine.forget_prefixes()
    reused = [answer.semblend["reused_tokens"] for answer in (warm, asking)]
    return cold.tokens, warm.tokens, everything.tokens, asking.tokens, reused


@pytest.fixture
def measured():
    """What both ranks measured at start. It decides nothing: a copy of tiny K/V never pays."""
    return []


@pytest.fixture
def pair(make_engine, monkeypatch, measured):
    monkeypatch.setenv("SEMBLEND_MEASURE_SPEED", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("SEMBLEND_SHADOW_RATE", "1")
    engine = make_engine(
        "llama",
        engine={
            "tensor_parallel_size": 2,
            "kv_transfer_config": transfer_config(
                name="OneRankFails",
                mode="segmented_experimental",
                recompute_policy="none",
                min_prompt_tokens=64,
            ),
        },
    )
    monkeypatch.delenv("SEMBLEND_MEASURE_SPEED")
    monkeypatch.setattr(engine.scheduler, "_use_times", measured.append)
    return engine


def test_two_ranks_answer_as_one(make_engine, pair, measured):
    two = answers(pair)
    assert [times.is_sound for times in measured] == [True], "one report of both ranks"
    assert two[2] == two[0], "all holes equal cold on two ranks"
    assert pair.scheduler.setup.ranks == 2
    assert pair.scheduler.planner.pipeline.stats().donors == 1
    shadows = pair.scheduler.shadows.watch.stats()
    single = make_engine("llama", capture_queue=7)
    one = answers(single)
    assert two == one
    assert shadows.samples == 2, "a region that is all holes is exact"
    alone = single.scheduler.shadows.watch.stats()
    assert shadows.disagreement == pytest.approx(alone.disagreement)
    assert shadows.divergence == pytest.approx(alone.divergence, rel=1e-3)


def test_what_fails_on_one_rank_is_computed_exactly_on_both(pair):
    pair.forget_donors()
    pair.donate(DONOR)
    target = TARGET.copy()
    target[0] = 7
    cold = pair.cold(target)
    failed = pair.run(target, hints={"capture": False})
    assert failed.tokens == cold.tokens
    assert failed.semblend["reason"] == "materialisation_failed"
    pair.forget_prefixes()
    assert pair.run(TARGET, hints={"capture": False}).semblend["outcome"] == "materialised"
