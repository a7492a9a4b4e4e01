"""Batches, chunks, preemption and aborts: every request ends as if it had run alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from semblend.integration.vllm.metadata import ConnectorMeta
from semblend.integration.worker.loads_in_flight import LoadsInFlight
from semblend.integration.worker.span_loader import DonorLostError, SpanLoad
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=31)
DONOR = joined(random_tokens(50, seed=32), DOCUMENT, random_tokens(20, seed=33))


def target(number: int, head: int = 70):
    return joined(
        random_tokens(head, seed=100 + number), DOCUMENT, random_tokens(30, seed=200 + number)
    )


@pytest.fixture
def engine(make_engine):
    engine = make_engine(
        "llama", engine={"max_num_batched_tokens": 256, "kv_cache_memory_bytes": 6 << 20}
    )
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def solo(engine, prompts, **options):
    answers = []
    for prompt in prompts:
        engine.forget_prefixes()
        answers.append(engine.run(prompt, hints={"capture": False}, **options))
    engine.forget_prefixes()
    return answers


def test_a_batch_of_reusing_and_cold_requests_equals_solo_runs(engine):
    engine.donate(DONOR)
    prompts = [target(1), random_tokens(300, seed=301), target(2, head=90), target(3, head=10)]
    alone = solo(engine, prompts)
    together = engine.run_all(prompts, hints={"capture": False})
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.semblend["outcome"] for a in together] == [
        "materialised",
        "cold",
        "materialised",
        "materialised",
    ]


def test_identical_prompts_in_one_batch_equal_solo_runs(engine):
    engine.donate(DONOR)
    (alone,) = solo(engine, [target(4)])
    together = engine.run_all([target(4)] * 3, hints={"capture": False})
    assert {a.tokens for a in together} == {alone.tokens}


def test_chunked_prefill_of_the_tail_equals_an_unchunked_one(engine):
    engine.donate(DONOR)
    long_tail = joined(target(5), random_tokens(600, seed=305))
    warm = engine.run(long_tail, hints={"capture": False})
    steps = [n for step in engine.scheduler_connector.steps[-20:] for n in step.values()]
    assert max(steps) <= 256
    engine.forget_prefixes()
    engine.forget_donors()
    # The oracle: what is computed behind the region depends on the region's K/V only.
    cold = engine.cold(long_tail)
    assert warm.semblend["outcome"] == "materialised"
    assert len(warm.tokens) == len(cold.tokens)


def test_holes_beyond_a_steps_budget_shorten_the_region(engine):
    engine.donate(DONOR)
    passage = random_tokens(120, seed=40)
    engine.donate(joined(random_tokens(20, seed=41), passage))
    prompt = joined(
        random_tokens(100, seed=42),
        DOCUMENT,
        random_tokens(200, seed=43),
        passage,
        random_tokens(20, seed=44),
    )
    warm = engine.run(prompt, hints={"capture": False})
    load = engine.scheduler_connector.loads[-1]
    assert load.hole_tokens == 100 <= 256
    assert load.end <= 100 + len(DOCUMENT)
    assert warm.semblend["reused_tokens"] <= len(DOCUMENT)


def test_requests_share_a_steps_hole_budget(engine):
    engine.donate(DONOR)
    prompts = [target(n, head=200) for n in (6, 7, 8)]
    alone = solo(engine, prompts)
    before = len(engine.scheduler_connector.loads)
    together = engine.run_all(prompts, hints={"capture": False})
    loads = engine.scheduler_connector.loads[before:]
    assert len(loads) == 3
    assert [a.tokens for a in together] == [a.tokens for a in alone]


def test_an_aborted_request_leaves_nothing_behind(engine):
    engine.donate(DONOR)
    free = engine.free_blocks()
    llm = engine.llm.llm_engine
    for steps in (0, 1, 2):
        llm.add_request(
            f"abort-{steps}",
            {"prompt_token_ids": target(12).tolist()},
            engine.sampling(max_tokens=50),
        )
        for _ in range(steps):
            llm.step()
        llm.abort_request([f"abort-{steps}"])
        engine.drain()
    assert not engine.scheduler.requests
    assert engine.free_blocks() == free
    assert engine.scheduler.planner.pipeline.ledger.totals().open_requests == 0


def test_captured_prompts_of_one_token_requests_are_whole(engine):
    """The request is over before its K/V is copied: its blocks must wait."""
    prompts = [random_tokens(200, seed=400 + n) for n in range(6)]
    engine.run_all(prompts, max_tokens=1)
    assert engine.scheduler.planner.pipeline.stats().donors == 6
    engine.forget_prefixes()
    for prompt in prompts:
        warm = engine.run(prompt)
        assert warm.cached_tokens == len(prompt) - 1
        assert warm.tokens == engine.cold(prompt).tokens


def test_preempted_requests_end_as_if_nothing_had_happened(make_engine):
    blocks = 52  # 17 a request and no 18th, which each wants before its end
    engine = make_engine(
        "llama", engine={"max_model_len": 1024, "kv_cache_memory_bytes": blocks * 32 * 1536}
    )
    engine.donate(DONOR)
    prompts = [target(n, head=40 + n) for n in (9, 10, 11)]
    alone = solo(engine, prompts, max_tokens=64)
    together = engine.run_all(prompts, max_tokens=64, hints={"capture": False})
    preemptions = sum(
        engine.scheduler_connector.requests[
            engine.scheduler_connector.internal(a.request_id)
        ].num_preemptions
        for a in together
    )
    assert preemptions > 0, "the pool was meant to be too small for all three"
    assert [a.tokens for a in together] == [a.tokens for a in alone]


@pytest.fixture
def paused_capture(engine):
    """Captures wait before they read any block, until the event is set."""
    captures, go = engine.worker.captures, threading.Event()
    read = captures._read

    def waiting(*arguments):
        assert go.wait(timeout=60)
        return read(*arguments)

    captures._read = waiting
    yield go
    go.set()
    del captures._read
    engine.drain()


def test_blocks_of_a_finished_request_wait_for_their_capture(engine, paused_capture):
    prompt = random_tokens(200, seed=500)
    expected = engine.kv(engine.cold(prompt), 0, 200)
    free = engine.free_blocks()
    one_token = engine.sampling(max_tokens=1)
    engine.llm.generate([{"prompt_token_ids": prompt.tolist()}], one_token, use_tqdm=False)
    skip = engine.sampling(max_tokens=2, hints={"reuse": False, "capture": False})
    others = [random_tokens(700, seed=510 + n) for n in range(8)]
    for other in others:  # more tokens than the pool has slots
        engine.llm.generate([{"prompt_token_ids": other.tolist()}], skip, use_tqdm=False)
    assert engine.free_blocks() == free - 7, "the prompt's seven blocks are still held"
    assert engine.scheduler.planner.pipeline.stats().donors == 0
    paused_capture.set()
    engine.drain()
    assert engine.free_blocks() == free
    assert engine.scheduler.planner.pipeline.stats().donors == 1
    (donor_id,) = engine.worker.donors._donors
    with engine.worker.donors.lease(donor_id, 0, 200) as donor:
        (piece,) = donor.pieces
        assert torch.equal(piece.kv, expected)


def test_preempted_requests_blocks_are_copied_before_they_are_overwritten(engine, paused_capture):
    llm = engine.llm.llm_engine
    prompt = {"prompt_token_ids": random_tokens(100, seed=501).tolist()}
    llm.add_request("p", prompt, engine.sampling(max_tokens=50))
    llm.step()
    (request_id,) = engine.scheduler.requests
    assert engine.worker.captures.is_pending(request_id)
    overwriting = threading.Thread(
        target=engine.worker.before_overwrite, args=(ConnectorMeta(preempted=[request_id]),)
    )
    overwriting.start()
    overwriting.join(timeout=0.2)
    assert overwriting.is_alive()
    paused_capture.set()
    overwriting.join(timeout=60)
    assert not engine.worker.captures.is_pending(request_id)
    llm.abort_request(["p"])


def test_no_more_prompts_wait_to_be_captured_than_the_queue_holds(engine, paused_capture):
    prompts = [{"prompt_token_ids": random_tokens(80, seed=520 + n).tolist()} for n in range(12)]
    engine.llm.generate(prompts, engine.sampling(max_tokens=1), use_tqdm=False)
    assert engine.scheduler.planner.pending == 8
    paused_capture.set()
    engine.drain()
    assert engine.scheduler.planner.pipeline.stats().donors == 8


def test_loads_copied_by_threads_end_like_loads_copied_between_steps(make_engine):
    """What a GPU does by default: requests wait for their copies, the others go on."""
    prompts = [target(n, head=40 + n) for n in (14, 15, 16)]
    cold = random_tokens(300, seed=540)
    expected, running = [], None
    for threads in (0, 2):
        engine = make_engine("llama", load_threads=threads, engine={"max_num_batched_tokens": 512})
        engine.donate(DONOR)
        if not threads:
            expected = [*solo(engine, prompts), *solo(engine, [cold])]
            continue
        running = engine.run_all([*prompts, cold], hints={"capture": False})
    assert [a.tokens for a in running] == [a.tokens for a in expected]
    assert [a.semblend["outcome"] for a in running] == ["materialised"] * 3 + ["cold"]


def test_an_engine_goes_on_while_a_copy_takes_its_time(make_engine):
    engine = make_engine("llama", load_threads=1)
    engine.forget_prefixes()
    engine.donate(DONOR)
    go, loads = threading.Event(), engine.worker.loads
    copy = loads._copies._copy

    def waiting(command, placed):
        assert go.wait(timeout=60)
        copy(command, placed)

    loads._copies._copy = waiting
    llm, ended = engine.llm.llm_engine, []
    hints = {"capture": False}
    for name, prompt, most in (("slow", target(17), 4), ("quick", random_tokens(90, seed=541), 8)):
        llm.add_request(
            name,
            {"prompt_token_ids": prompt.tolist()},
            engine.sampling(max_tokens=most, hints=hints),
        )
    while llm.has_unfinished_requests():
        ended += [output.request_id for output in llm.step() if output.finished]
        if ended == ["quick"] and not go.is_set():
            assert len(loads) == 1
            go.set()
    loads._copies._copy = copy
    assert ended == ["quick", "slow"]


def test_a_request_that_is_aborted_while_it_is_copied_frees_its_blocks(make_engine):
    engine = make_engine("llama", load_threads=1)
    engine.forget_prefixes()
    engine.donate(DONOR)
    free, go, loads = engine.free_blocks(), threading.Event(), engine.worker.loads
    copy = loads._copies._copy

    def waiting(command, placed):
        assert go.wait(timeout=60)
        copy(command, placed)

    loads._copies._copy = waiting
    llm = engine.llm.llm_engine
    llm.add_request("gone", {"prompt_token_ids": target(18).tolist()}, engine.sampling())
    for _ in range(3):
        llm.step()
    assert len(loads) == 1
    llm.abort_request(["gone"])
    assert engine.free_blocks() < free, "the copy still writes into them"
    go.set()
    engine.drain()
    loads._copies._copy = copy
    assert engine.free_blocks() == free
    assert not engine.scheduler.requests


@pytest.mark.parametrize("sound", [True, False])
def test_a_pass_queued_behind_its_copies_counts_only_once_they_ended_well(make_engine, sound):
    """As in an idle step on a GPU: holes are computed while checksums are still on their way."""
    engine = make_engine("llama", load_threads=1)
    engine.forget_prefixes()
    engine.forget_donors()
    engine.donate(DONOR)
    expected = (
        engine.run(target(19), hints={"capture": False}) if sound else engine.cold(target(19))
    )
    engine.forget_prefixes()
    go, passes = threading.Event(), []
    finish, run = SpanLoad.finish, engine.worker.nested.run

    def late(load):
        assert go.wait(timeout=60)
        tokens = finish(load)
        if not sound:
            raise DonorLostError("a donor", "its checksum fails")
        return tokens

    def placed(copies, load, arrivals):
        load.placed = SimpleNamespace(wait=lambda layer: None)
        copies._changed.set()

    def counted(*arguments, **options):
        passes.append(go.is_set())
        return run(*arguments, **options)

    llm, answers = engine.llm.llm_engine, {}
    with (
        patch.object(SpanLoad, "finish", late),
        patch.object(LoadsInFlight, "_placed", placed),
        patch.object(engine.worker.nested, "run", counted),
    ):
        sampling = engine.sampling(hints={"capture": False})
        llm.add_request("early", {"prompt_token_ids": target(19).tolist()}, sampling)
        while llm.has_unfinished_requests():
            for output in llm.step():
                answers[output.request_id] = output
            if passes and not go.is_set():
                assert not answers, "nothing is sampled over a load that may yet fail"
                go.set()
    assert passes[0] is False, "the pass did not wait for the checksums"
    output = answers["early"]
    assert tuple(output.outputs[0].token_ids) == expected.tokens
    said = output.kv_transfer_params["semblend"]
    assert said["outcome"] == ("materialised" if sound else "declined")
    engine.drain()
    assert not len(engine.worker.loads)
