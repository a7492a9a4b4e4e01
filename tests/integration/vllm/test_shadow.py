"""Shadow samples: reused requests computed cold as well, judged, and reuse off where it fails."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from semblend.core.faults import InjectedError
from semblend.core.plan import Hole
from semblend.integration.modes import Mode
from semblend.integration.scheduler.capture_orders import Captures
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.worker.shadow_passes import compared
from semblend.planning.shadow_watch import COMPARED_TOKENS, ShadowWatch
from tests.integration.models import joined, plain_model, random_tokens

DOCUMENT = random_tokens(420, seed=801)
DONOR = joined(random_tokens(50, seed=802), DOCUMENT, random_tokens(20, seed=803))


def target(number):
    head, tail = random_tokens(90 + number, seed=810 + number), random_tokens(25, seed=830 + number)
    return joined(head, DOCUMENT, tail)


class Recording(ShadowWatch):
    """Remembers every sample."""

    def __init__(self):
        super().__init__()
        self.divergences, self.disagreements = [], []

    def observe(self, key, *, divergence, disagreement):
        self.divergences.append(divergence)
        self.disagreements.append(disagreement)
        return super().observe(key, divergence=divergence, disagreement=disagreement)


@pytest.fixture
def engine(make_engine, monkeypatch):
    monkeypatch.setenv("SEMBLEND_SHADOW_RATE", "1")
    engine = make_engine("llama", audit_path=None)
    engine.forget_donors()
    engine.forget_prefixes()
    engine.scheduler.shadows.watch = Recording()
    engine.donate(DONOR)
    return engine


def figures(engine):
    watch = engine.scheduler.shadows.watch
    return watch.divergences, watch.disagreements


def log_probabilities(prompt, outputs):
    """Cold, in plain transformers: behind the prompt and all outputs but the last."""
    tokens = torch.tensor([[*prompt.tolist(), *outputs[:-1]]])
    with torch.inference_mode():
        return plain_model("llama")(tokens).logits[0, len(prompt) - 1 :].log_softmax(-1)


def test_a_sample_says_how_far_reuse_is_from_cold(engine):
    free = engine.free_blocks()
    prompt = target(1)
    warm = engine.run(prompt, max_tokens=COMPARED_TOKENS, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    ((kl,), (differs,)) = figures(engine)
    assert engine.free_blocks() == free, "a sample gives its blocks back"
    assert not engine.scheduler.has_pending_work
    cold = log_probabilities(prompt, warm.tokens)
    expected = float((cold.argmax(-1) != torch.tensor(warm.tokens)).float().mean())
    assert differs == pytest.approx(expected)
    assert kl > 1e-3, "random weights make reuse visibly approximate"


def test_what_a_sample_has_computed_is_an_exact_prefix_from_then_on(engine):
    prompt, free = target(12), engine.free_blocks()
    assert engine.run(prompt).semblend["outcome"] == "materialised"
    assert len(figures(engine)[0]) == 1
    assert engine.free_blocks() == free
    again = engine.run(prompt, hints={"capture": False})
    assert again.semblend["outcome"] == "exact_prefix"
    assert again.cached_tokens >= len(prompt) - 32
    assert not again.semblend["approximate"]
    assert again.tokens == engine.cold(prompt).tokens


def test_where_everything_is_computed_after_all_nothing_differs(engine):
    """A sample's own error: a region that is all holes is cold, by both ways of computing it."""
    engine.scheduler_connector.rewrite_load = lambda load: replace(
        load, copies=(), holes=(Hole(load.start, load.end),)
    )
    warm = engine.run(target(2), max_tokens=8, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    ((kl,), (differs,)) = figures(engine)
    assert differs == 0.0
    assert kl < 1e-6


def test_cold_and_exact_requests_are_never_sampled(engine):
    engine.run(target(4), hints={"reuse": False, "capture": False})
    engine.run(target(4), hints={"reuse": False, "capture": False})
    assert figures(engine) == ([], [])


def test_a_broken_bound_turns_reuse_off_for_its_namespace_only_until_somebody_resets(engine):
    watch = engine.scheduler.shadows.watch
    number = 5
    while not watch.stats().suspended:
        warm = engine.run(target(number), max_tokens=8, hints={"capture": False})
        assert warm.semblend["outcome"] == "materialised"
        number += 1
        assert number < 40, "reuse over random weights differs from cold in most tokens"
    declined = engine.run(target(number), max_tokens=4, hints={"capture": False})
    assert declined.semblend["reason"] == "shadow_diverged"
    assert "of compared tokens differed from cold" in declined.semblend["detail"]
    assert declined.semblend["reused_tokens"] == 0
    assert declined.tokens == engine.cold(target(number), max_tokens=4).tokens
    # Another tenant's donors are judged by their own samples.
    engine.run(DONOR, salt="tenant-b", hints={"reuse": False})
    other = engine.run(target(number), salt="tenant-b", hints={"capture": False})
    assert other.semblend["outcome"] == "materialised"
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    again = engine.run(target(number), hints={"capture": False})
    assert again.semblend["outcome"] == "materialised"


def test_a_sample_that_fails_harms_nobody(engine, monkeypatch):
    free = engine.free_blocks()

    def broken(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr(engine.worker.nested, "logits", broken)
    warm = engine.run(target(41), hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    assert figures(engine) == ([], [])
    assert engine.free_blocks() == free
    assert not engine.scheduler.has_pending_work


def test_a_sample_whose_orders_a_worker_could_not_take_ends(engine):
    free = engine.free_blocks()
    look, failed = engine.worker._look_at_weights, []

    def broken(meta):
        if any(not order.warm for order in meta.shadows) and not failed:
            failed.append(meta)
            raise RuntimeError("out of memory")
        look(meta)

    with patch.object(engine.worker, "_look_at_weights", broken):
        engine.llm.generate(
            [{"prompt_token_ids": target(7).tolist()}],
            engine.sampling(hints={"capture": False}),
            use_tqdm=False,
        )
        for _ in range(30):
            engine.llm.llm_engine.engine_core.engine_core.step_fn()
    assert failed
    assert not engine.scheduler.has_pending_work
    assert engine.free_blocks() == free
    assert figures(engine) == ([], [])


def test_a_sample_is_read_while_its_blocks_are_held_or_never(engine):
    """They are freed with the step that is told of them, and a pass would write into them."""
    step, told = engine.worker.start_step, []

    def noted(meta):
        told.append(meta)
        step(meta)

    with (
        patch.object(engine.worker, "start_step", noted),
        patch.object(Captures, "orders", side_effect=InjectedError),
    ):
        engine.run(target(8), hints={"capture": False})
    (held,) = (number for number, meta in enumerate(told) if meta.held)
    warm = [n for n, meta in enumerate(told) if any(order.warm for order in meta.shadows)]
    assert warm == [held]


def test_a_busy_engine_computes_no_samples_until_it_has_time(engine):
    """One request ends early; while the other decodes, the sample of the first waits."""
    steps = engine.scheduler_connector.cold_shadow_steps
    steps.clear()
    inputs = [{"prompt_token_ids": target(number).tolist()} for number in (42, 43)]
    hints = {"capture": False}
    lengths = [engine.sampling(hints=hints, max_tokens=most) for most in (2, 40)]
    engine.llm.generate(inputs, lengths, use_tqdm=False)
    engine.drain()
    assert len(figures(engine)[0]) == 2
    busy = [pieces for idle, pieces in steps if not idle]
    assert len(busy) >= 40
    assert not any(busy)
    assert sum(pieces for idle, pieces in steps if idle) >= 2


def test_too_many_samples_are_not_taken(engine, monkeypatch):
    monkeypatch.setattr("semblend.integration.scheduler.shadows.QUEUED", 1)
    engine.run_all([target(number) for number in range(46, 50)], hints={"capture": False})
    assert len(figures(engine)[0]) < 4


def test_comparing_distributions():
    cold = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    assert compared(cold=cold, warm=cold) == (0.0, 0.0)
    warm = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log()
    kl, differs = compared(cold=cold, warm=warm)
    assert differs == 0.5
    assert kl == pytest.approx(0.5 * 0.8 * torch.log(torch.tensor(9.0)).item(), rel=1e-5)


def test_modes_that_load_nothing_approximate_take_no_samples(engine):
    setup, port = engine.scheduler.setup, engine.scheduler_connector._port
    assert engine.scheduler.shadows is not None
    for mode in (Mode.DISCOVERY_ONLY, Mode.EXACT_PREFIX, Mode.SEGMENTED):
        side = SchedulerSide(replace(setup, mode=mode), port)
        side.close()
        assert side.shadows is None
