"""Speculative decoding beside reuse: drafts change when answers come, not what they say."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from semblend.core.faults import planted
from semblend.core.plan import Hole
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.planning.shadow_watch import COMPARED_TOKENS
from tests.integration.models import joined, plain_model
from tests.integration.vllm import drafters
from tests.integration.vllm.test_segmented import DONOR, TARGET, all_holes
from tests.integration.vllm.test_shadow import Recording
from tests.oracles.attention import lent_to, segmented_forward

OWN_LAYERS = 1
RUNNER = os.environ.get("TEST_VLLM_RUNNER", "v1")
SCHEDULING = os.environ.get("TEST_VLLM_SCHEDULING", "sync")
# vLLM's n-gram kernel for V2 does not run in Triton's interpreter, and V1's is synchronous. Its
# n-grams come last: vLLM cannot look through what they import for kernels to replace.
DRAFTERS = ["eagle", "ngram"] if (RUNNER, SCHEDULING) == ("v1", "sync") else ["eagle"]
LENGTH = 24


@pytest.fixture(params=DRAFTERS, scope="module")
def drafter(request):
    return request.param


@pytest.fixture
def engine(make_engine, drafter):
    config = getattr(drafters, drafter)()
    engine = make_engine("even", engine={"speculative_config": config})
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def accepted(engine, run):
    """The share of drafted tokens that the model accepts in a run, and its answer."""
    before = _counts(engine)
    answer = run()
    taken, drafted = (now - then for now, then in zip(_counts(engine), before, strict=True))
    return taken / drafted, answer


def _counts(engine):
    found = {metric.name: getattr(metric, "value", 0) for metric in engine.llm.get_metrics()}
    return (
        found["vllm:spec_decode_num_accepted_tokens"],
        found["vllm:spec_decode_num_draft_tokens"],
    )


def test_shadow_samples_compare_what_the_model_says_not_what_is_drafted(make_engine, monkeypatch):
    """Over an fp8 cache at the same time."""
    monkeypatch.setenv("SEMBLEND_SHADOW_RATE", "1")
    options = {"speculative_config": drafters.eagle(), "kv_cache_dtype": "fp8"}
    engine = make_engine("even", audit_path=None, engine=options)
    engine.scheduler.shadows.watch = watch = Recording()
    engine.donate(DONOR)
    engine.run(TARGET, max_tokens=COMPARED_TOKENS, hints={"capture": False})
    engine.forget_prefixes()
    engine.scheduler_connector.rewrite_load = lambda load: replace(
        load, copies=(), holes=(Hole(load.start, load.end),)
    )
    engine.run(TARGET, max_tokens=COMPARED_TOKENS, hints={"capture": False})
    reused, computed = watch.divergences
    assert reused > 1e-4
    assert computed < 1e-6, "all holes are cold"
    assert watch.disagreements[-1] == 0.0


def test_a_region_that_is_all_holes_equals_cold(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET, max_tokens=LENGTH)
    expected = engine.kv(cold, 0, len(TARGET))
    engine.rewrite = all_holes
    warm = engine.run(TARGET, max_tokens=LENGTH)
    assert engine.scheduler_connector.loads[-1].hole_tokens > 500
    assert warm.tokens == cold.tokens
    # The drafter's layer too: the pass runs the drafter over the holes.
    torch.testing.assert_close(engine.kv(warm, 0, len(TARGET)), expected, atol=1e-4, rtol=1e-4)


def test_a_composition_answers_as_the_float64_reference_does(engine):
    donor = engine.donate(DONOR)
    lent = engine.kv(donor, 0, len(DONOR))[:OWN_LAYERS].double()
    warm = engine.run(TARGET, max_tokens=LENGTH)
    load = engine.scheduler_connector.loads[-1]
    assert load.reused_tokens == 420
    model = plain_model("even")
    theta = model.config.rope_parameters["rope_theta"]
    borrowed = lent_to(load.copies, {span.donor_id: lent for span in load.copies}, theta)
    said = joined(TARGET, np.array(warm.tokens[:-1], dtype=np.int32))
    expected = segmented_forward(model, said, borrowed)
    got = engine.kv(warm, 0, len(TARGET))[:OWN_LAYERS].double()
    torch.testing.assert_close(got[:, 0], expected.keys[:, : len(TARGET)], atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(got[:, 1], expected.values[:, : len(TARGET)], atol=2e-3, rtol=1e-3)
    assert list(warm.tokens) == expected.logits[len(TARGET) - 1 :].argmax(-1).tolist()


def test_a_prompt_whose_last_token_alone_is_computed_answers_as_cold(engine):
    """vLLM fills such a step up with drafts that mean nothing."""
    engine.donate(DONOR)
    cold = engine.cold(DONOR, max_tokens=LENGTH)
    warm = engine.run(DONOR, max_tokens=LENGTH)
    assert warm.semblend["reused_tokens"] == len(DONOR) - 1
    assert warm.tokens == cold.tokens


def test_donors_hold_the_prompt_and_no_draft(engine):
    """Rejected drafts leave K/V behind the prompt, in the block in which it ends."""
    cold = engine.cold(DONOR)
    expected = engine.kv(cold, 0, len(DONOR))
    engine.donate(DONOR, max_tokens=LENGTH)
    donors = engine.worker.donors
    donor_id = donors.holding(DONOR)
    with donors.lease(donor_id, 0, len(DONOR)) as donor:
        kept = torch.cat([piece.kv for piece in donor.pieces], dim=2)
    assert kept.shape[2] == len(DONOR)
    assert torch.equal(kept, expected)


def test_blocks_stay_until_the_answer_in_them_is_copied(engine):
    """With a drafter, V1 asks for finished requests before this step's captures have begun."""
    llm, read, copied = engine.llm.llm_engine, CaptureThread._read, threading.Event()
    other = {"prompt_token_ids": TARGET.tolist(), "cache_salt": "other"}
    llm.add_request("other", other, engine.sampling(max_tokens=300, hints={"capture": False}))
    asked = engine.sampling(max_tokens=60, hints={"reuse": False})
    llm.add_request("asked", {"prompt_token_ids": DONOR.tolist()}, asked)

    def late(self, *arguments):
        assert copied.wait(20)
        return read(self, *arguments)

    answered = False
    while not answered:
        engine.worker.captures.wait()  # the prompt is copied, and its answer is not ordered yet
        answered = any(output.finished for output in llm.step())
    with patch.object(CaptureThread, "_read", late):
        try:
            for _ in range(4):
                llm.step()
            assert engine.worker.captures._pending
            assert engine.scheduler.has_held_blocks
        finally:
            copied.set()
    llm.abort_request(["other"])
    engine.drain()
    assert not engine.scheduler.has_held_blocks


def test_a_failed_load_answers_as_cold(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET, max_tokens=LENGTH)
    with planted("nested_pass"):
        warm = engine.run(TARGET, max_tokens=LENGTH)
    assert warm.semblend["outcome"] != "materialised"
    assert warm.tokens == cold.tokens


def test_approximate_blocks_stay_private_and_the_next_prompt_is_exact(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET, max_tokens=LENGTH)
    warm = engine.run(TARGET, max_tokens=LENGTH)
    assert warm.semblend["approximate"]
    again = engine.run(TARGET, max_tokens=LENGTH, hints={"reuse": False, "capture": False})
    assert again.cached_tokens <= 96, "blocks 0 to 2 hold the exact head alone"
    assert again.tokens == cold.tokens


@pytest.mark.parametrize("drafter", ["eagle"], indirect=True, scope="module")
def test_moved_donors_draft_as_well_as_cold(engine, monkeypatch):
    """The drafter's K/V moves with the model's; without it, few drafts would be accepted."""
    engine.donate(DONOR)
    cold, _ = accepted(engine, lambda: engine.cold(TARGET, max_tokens=60))
    keep_nothing = {"capture": False}  # or the holes' exact tokens would be donors of the next run
    warm, reused = accepted(engine, lambda: engine.run(TARGET, max_tokens=60, hints=keep_nothing))
    engine.forget_prefixes()
    monkeypatch.setattr(engine.worker.nested, "_draft", None)
    bare, answer = accepted(engine, lambda: engine.run(TARGET, max_tokens=60))
    print(f"accepted: cold {cold:.2f}, reuse {warm:.2f}, holes without drafts {bare:.2f}")
    assert cold > 0.9
    assert warm > cold - 0.1
    assert bare < warm
    assert answer.tokens == reused.tokens, "drafts change no answer"


@pytest.mark.parametrize("drafter", ["eagle"], indirect=True, scope="module")
def test_a_policy_that_looks_sees_the_models_own_layers(engine):
    engine.donate(DONOR)
    hints = {"policy": "query_attention(0.2)", "capture": False}
    warm = engine.run(TARGET, max_tokens=LENGTH, hints=hints)
    assert warm.semblend["outcome"] == "materialised"
    assert warm.semblend["recomputed_tokens"] > 0
