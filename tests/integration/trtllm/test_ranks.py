"""Tensor parallelism: one leader, orders for all, and only what everybody did counts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch

from semblend.integration.scheduler.orders import CaptureCommand, WorkerReport
from semblend.integration.trtllm.metadata import ConnectorMeta
from semblend.integration.trtllm.worker_side import TrtWorkerSide
from semblend.integration.worker.agreement import Agreement
from semblend.integration.worker.capture_copies import CaptureThread
from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import BLOCK, cold

DOCUMENT = random_tokens(300, seed=1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_ranks_load_their_heads_and_answer_as_cold(make, asynchronous):
    options = {"async_load_tokens": 64} if asynchronous else {}
    engine = make(ranks=2, options=options)
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    second = joined(DOCUMENT, random_tokens(30, seed=3))
    request = engine.run(second)
    reference = cold("llama", second)
    assert request.generated == reference.generated
    torch.testing.assert_close(torch.stack(request.logits), torch.stack(reference.logits))
    assert engine.records("materialized")[0]["materialized_tokens"] == 300 // BLOCK * BLOCK
    assert engine.ranks.gathers > 0


def test_a_ladder_climbs_on_two_ranks(make):
    one, two = make(ranks=1), make(ranks=2)
    prompt = joined(random_tokens(32, seed=3), DOCUMENT, random_tokens(9, seed=4))
    answers = []
    for engine in (one, two):
        engine.run(joined(random_tokens(24, seed=1), DOCUMENT))
        answers.append(asyncio.run(engine.ladder(prompt)))
    assert answers[0].report["reused_tokens"] == answers[1].report["reused_tokens"] > 250
    torch.testing.assert_close(answers[0].output.logits, answers[1].output.logits)


def test_a_donor_one_rank_could_not_keep_is_found_by_nobody(make, monkeypatch):
    engine = make(ranks=2)
    real = CaptureThread._store

    def failing(self, job):
        if self is engine.workers[1].side.parts.captures:
            raise MemoryError
        return real(self, job)

    monkeypatch.setattr(CaptureThread, "_store", failing)
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    assert not engine.records("donor_registered")
    assert engine.records("donor_registration_failed")
    monkeypatch.setattr(CaptureThread, "_store", real)
    engine.run(random_tokens(80, seed=7))  # its metadata carries the order to let go
    assert all(len(worker.side.parts.donors) == 1 for worker in engine.workers), (
        "the last one alone"
    )


def test_a_rungs_failure_on_one_rank_throws_the_answer_away(make, monkeypatch):
    engine = make(ranks=2)
    engine.run(joined(random_tokens(24, seed=1), DOCUMENT))
    for pool in engine.executor.paged.pools:
        pool.nan_to_num_(0.0)
    real = TrtWorkerSide._copy

    def failing(self, command):
        if self is engine.workers[1].side:
            raise MemoryError("host")
        return real(self, command)

    monkeypatch.setattr(TrtWorkerSide, "_copy", failing)
    prompt = joined(random_tokens(32, seed=3), DOCUMENT, random_tokens(9, seed=4))
    answer = asyncio.run(engine.ladder(prompt))
    assert "MemoryError" in answer.report["failed"]
    assert answer.output.token_ids == cold("llama", prompt).generated


def test_ranks_exchange_only_while_something_is_open(make):
    engine = make(ranks=2)
    engine.run(random_tokens(100, seed=1))
    before = engine.ranks.gathers
    for _ in range(5):
        engine.executor.step()
    assert engine.ranks.gathers == before


def test_an_order_counts_when_the_last_rank_has_answered():
    others = [WorkerReport()]
    leader = Agreement(ranks=2, gather=lambda mine: [mine, *others])
    command = CaptureCommand(
        request_id="1", donor_id="d", block_ids=(0,), tokens=random_tokens(4, 1), share_key=b""
    )
    leader.expect(ConnectorMeta(captures=[command]))
    kept = WorkerReport(captured=Counter(d=1), answered=Counter(d=1))
    assert leader.exchange(kept).is_empty
    others[0] = WorkerReport(rejected={"d": "no room"}, answered=Counter(d=1))
    agreed = leader.exchange(WorkerReport())
    assert (agreed.rejected, agreed.answered["d"]) == ({"d": "no room"}, 2)
    assert not leader.is_open
