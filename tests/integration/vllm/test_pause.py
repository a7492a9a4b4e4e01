"""Pausing, sleeping and resetting while captures and samples hold blocks."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.interface import PauseState

from semblend.core.errors import DonorError
from semblend.integration.vllm import worker
from semblend.integration.worker import capture_copies as capturing
from semblend.integration.worker.capture_copies import CaptureThread
from tests.integration.models import joined, random_tokens
from tests.integration.vllm.engines import WORKER

DOCUMENT = random_tokens(420, seed=221)
DONOR = joined(random_tokens(50, seed=222), DOCUMENT, random_tokens(20, seed=223))
TARGET = joined(random_tokens(110, seed=224), DOCUMENT, random_tokens(33, seed=225))
OTHER = random_tokens(300, seed=226)


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


@contextmanager
def slow_captures():
    """Captures that read nothing before they are told to."""
    go_on, reads = threading.Event(), threading.Event()
    read = CaptureThread._read

    def slow(self, *arguments):
        reads.set()
        assert go_on.wait(20)
        return read(self, *arguments)

    with patch.object(CaptureThread, "_read", slow):
        try:
            yield SimpleNamespace(go_on=go_on, reads=reads)
        finally:
            go_on.set()


def finished_while_captured(engine, prompt, captures):
    """Run a prompt to its end; its capture is still under way then."""
    engine.llm.generate(
        [{"prompt_token_ids": prompt.tolist()}],
        engine.sampling(max_tokens=2, hints={"reuse": False}),
        use_tqdm=False,
    )
    assert captures.reads.wait(20)
    assert engine.scheduler.has_held_blocks


def all_free(engine):
    return engine.free_blocks() == engine.core.kv_cache_manager.block_pool.num_gpu_blocks - 1


def test_a_reset_takes_blocks_back_from_captures(engine):
    with slow_captures() as captures:
        finished_while_captured(engine, DONOR, captures)
        assert engine.llm.reset_prefix_cache(reset_running_requests=True)
        assert all_free(engine)
        captures.go_on.set()
    engine.drain()
    assert not engine.core.has_requests()
    # Its blocks were not overwritten before the copy was done: the donor is right.
    assert engine.run(DONOR).semblend["reused_tokens"] == len(DONOR) - 1
    assert all_free(engine)


def test_blocks_taken_back_are_not_overwritten_before_their_copy_is_done(engine):
    cold = engine.cold(DONOR)
    expected = engine.kv(cold, 0, len(DONOR) - 1)
    with slow_captures() as captures:
        finished_while_captured(engine, DONOR, captures)
        engine.llm.reset_prefix_cache(reset_running_requests=True)
        threading.Timer(0.3, captures.go_on.set).start()
        # Takes the very blocks: they are the first on the free list again.
        many = [random_tokens(600, seed=230 + n) for n in range(4)]
        engine.llm.generate(
            [{"prompt_token_ids": prompt.tolist()} for prompt in many],
            engine.sampling(max_tokens=1, hints={"reuse": False, "capture": False}),
            use_tqdm=False,
        )
    engine.drain()
    warm = engine.run(DONOR)
    assert warm.semblend["reused_tokens"] == len(DONOR) - 1
    assert torch.equal(engine.kv(warm, 0, len(DONOR) - 1), expected)


@pytest.mark.skipif(
    os.environ.get("TEST_VLLM_SCHEDULING") == "async",
    reason="vLLM does not preempt all requests while a step is in flight",
)
def test_an_abort_while_a_preempted_request_is_loaded_again_frees_it_once(engine):
    """Its capture has ended, but the scheduler does not know yet: a step is in flight."""
    engine.donate(DONOR)
    llm = engine.llm.llm_engine
    core = llm.engine_core.engine_core
    execute, gone = core.model_executor.execute_model, []

    def executed(scheduled, *arguments, **options):
        if not gone:
            gone.extend(core.scheduler.requests)
            core.abort_requests(list(gone))
        return execute(scheduled, *arguments, **options)

    with slow_captures() as captures:
        llm.add_request("gone", {"prompt_token_ids": TARGET.tolist()}, engine.sampling())
        while not captures.reads.is_set():
            llm.step()
        engine.llm.reset_prefix_cache(reset_running_requests=True)
        threading.Timer(0.2, captures.go_on.set).start()
        with patch.object(core.model_executor, "execute_model", executed):
            llm.step()
            assert gone
            assert engine.scheduler_connector.loads[-1].request_id == gone[0]
    llm.abort_request(["gone"])
    engine.drain()
    assert all_free(engine)
    assert not core.scheduler.requests


@pytest.mark.parametrize("sent", [False, True], ids=["not ordered yet", "being copied"])
def test_a_promotion_that_gives_its_blocks_back_donates_nothing_else(engine, sent):
    engine.donate(DONOR)
    first = engine.run(TARGET, max_tokens=24)
    second = joined(TARGET, np.asarray(first.tokens, dtype=np.int32), random_tokens(12, seed=228))
    step = engine.llm.llm_engine.engine_core.engine_core.step_fn
    promotions = engine.scheduler.promotions
    generate = engine.llm.generate
    generate([{"prompt_token_ids": second.tolist()}], engine.sampling(), use_tqdm=False)
    engine.worker.captures.wait()
    with slow_captures() as captures:
        while promotions._current is None or not promotions._current.donated:
            step()
        if sent:
            step()
            assert captures.reads.wait(20)
        assert engine.llm.reset_prefix_cache()
        assert all_free(engine)
        threading.Timer(0.3, captures.go_on.set).start()
        many = [random_tokens(600, seed=230 + n) for n in range(4)]
        generate(
            [{"prompt_token_ids": prompt.tolist()} for prompt in many],
            engine.sampling(max_tokens=1, hints={"reuse": False, "capture": False}),
            use_tqdm=False,
        )
    engine.drain()
    assert_donors_are_cold(engine)


@pytest.mark.parametrize("state", ["PAUSED_ALL", "PAUSED_NEW"])
def test_a_pause_ends_although_a_conversation_could_be_promoted(engine, state):
    """A server's pause waits until the engine has no work; its requests stay where they are."""
    engine.donate(DONOR)
    first = engine.run(TARGET, max_tokens=24)
    second = joined(TARGET, np.asarray(first.tokens, dtype=np.int32), random_tokens(12, seed=228))
    engine.llm.generate([{"prompt_token_ids": second.tolist()}], engine.sampling(), use_tqdm=False)
    assert engine.scheduler.promotions.has_pending_work
    llm = engine.llm.llm_engine
    core = llm.engine_core.engine_core
    engine.core.set_pause_state(PauseState[state])
    llm.add_request("waits", {"prompt_token_ids": OTHER.tolist()}, engine.sampling())
    try:
        for _ in range(30):
            core.step_fn()
            engine.worker.captures.wait()
        assert not engine.core.has_requests()
        assert not core.batch_queue
    finally:
        core.resume_scheduler()
    while llm.has_unfinished_requests():
        llm.step()
    engine.drain()
    assert not engine.scheduler.promotions.has_pending_work
    assert all_free(engine)


def assert_donors_are_cold(engine):
    for donor_id, donor in list(engine.worker.donors._donors.items()):
        with engine.worker.donors.lease(donor_id, 0, len(donor.tokens)) as held:
            kept = torch.cat([piece.kv for piece in held.pieces], dim=2)[:, :, : len(donor.tokens)]
        cold = engine.cold(donor.tokens, max_tokens=1)
        torch.testing.assert_close(kept, engine.kv(cold, 0, len(donor.tokens)), atol=1e-4, rtol=0)


def test_a_pause_that_clears_the_cache_does_not_fail(engine):
    core = engine.llm.llm_engine.engine_core.engine_core
    with slow_captures() as captures:
        finished_while_captured(engine, OTHER, captures)
        core.pause_scheduler(mode="abort", clear_cache=True)
        assert all_free(engine)
    core.resume_scheduler()
    engine.drain()
    assert engine.run(TARGET).tokens == engine.cold(TARGET).tokens
    assert all_free(engine)


def test_a_reset_takes_blocks_back_from_shadow_samples(make_engine, monkeypatch):
    monkeypatch.setenv("SEMBLEND_SHADOW_RATE", "1")
    engine = make_engine("llama", engine={"max_num_seqs": 7})
    engine.donate(DONOR)
    engine.llm.generate([{"prompt_token_ids": TARGET.tolist()}], engine.sampling(), use_tqdm=False)
    core = engine.llm.llm_engine.engine_core.engine_core
    for _ in range(50):
        if any(sample.loan for sample in engine.scheduler.shadows._samples):
            break
        core.step_fn()
    assert any(sample.loan for sample in engine.scheduler.shadows._samples)
    assert engine.llm.reset_prefix_cache(reset_running_requests=True)
    assert all_free(engine)
    engine.drain()
    assert not engine.scheduler.shadows.has_pending_work
    assert engine.run(OTHER).tokens == engine.cold(OTHER).tokens


def test_sleep_waits_for_the_capture_that_reads_and_drops_the_others(engine):
    """vLLM's CPU worker does not sleep; what ours does before it would is the same."""
    (ours,) = engine.llm.collective_rpc(lambda worker: worker)
    with slow_captures() as captures:
        finished_while_captured(engine, DONOR, captures)
        threading.Timer(0.2, captures.go_on.set).start()
        ours.sleep(1)
        assert not engine.worker.captures._pending
    engine.drain()
    assert len(engine.worker.donors) == 0  # it read nothing that may be lost
    assert engine.worker._weights_epoch == 0
    assert all_free(engine)


def test_a_copy_that_does_not_end_keeps_the_cache_mapped(engine, monkeypatch):
    monkeypatch.setattr(capturing, "_WAIT_S", 0.05)
    (ours,) = engine.llm.collective_rpc(lambda worker: worker)
    with slow_captures() as captures:
        finished_while_captured(engine, OTHER, captures)
        with (
            patch.object(worker.PlatformWorker, "sleep") as unmaps,
            pytest.raises(DonorError, match="still being copied"),
        ):
            ours.sleep(1)
        unmaps.assert_not_called()
    engine.drain()
    assert all_free(engine)


def test_sleep_takes_memory_only_once_nobody_reads_it():
    told: list[str] = []
    ours = resolve_obj_by_qualname(WORKER)
    with patch.object(worker, "_tell", lambda method, *_: told.append(method)):
        ours.sleep(ours.__new__(ours), 2)
    assert told == ["before_unmapping", "weights_changed"]


@pytest.mark.skipif(
    not hasattr(worker.PlatformWorker, "discard"), reason="vLLM 0.30 discards no memory"
)
def test_memory_is_discarded_only_once_nobody_reads_it():
    told: list[str] = []
    ours = resolve_obj_by_qualname(WORKER)
    with (
        patch.object(worker, "_tell", lambda method, *_: told.append(method)),
        pytest.raises(RuntimeError, match="not supported on CPU"),
    ):
        ours.discard(object(), ("kv_cache",))
    assert told == ["before_unmapping"]


def test_an_answer_whose_blocks_were_taken_back_is_not_kept(engine):
    """Its capture is ordered with the step after the last, which may have its blocks already."""
    (output,) = engine.llm.generate(
        [{"prompt_token_ids": DONOR.tolist()}],
        engine.sampling(max_tokens=70, hints={"reuse": False}),
        use_tqdm=False,
    )
    answer = np.asarray(output.outputs[0].token_ids, dtype=np.int32)
    # No step has been run since the answer ended.
    assert engine.llm.reset_prefix_cache()
    assert all_free(engine)
    many = [random_tokens(600, seed=240 + n) for n in range(4)]
    engine.llm.generate(
        [{"prompt_token_ids": prompt.tolist()} for prompt in many],
        engine.sampling(max_tokens=1, hints={"reuse": False, "capture": False}),
        use_tqdm=False,
    )
    engine.drain()
    engine.forget_prefixes()
    later = joined(DONOR, answer, random_tokens(40, seed=245))
    warm = engine.run(later)
    length = len(DONOR) + len(answer) - 1
    warm_kv = engine.kv(warm, 0, length)
    cold = engine.cold(later)
    torch.testing.assert_close(warm_kv, engine.kv(cold, 0, length), rtol=1e-3, atol=1e-3)
    assert all_free(engine)
