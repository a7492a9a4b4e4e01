"""Random traffic: whatever comes, ordinary answers are the cold ones and nothing leaks."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pytest

from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import cold
from tests.integration.trtllm.generations import GENERATIONS

PASSAGES = [random_tokens(n, seed=400 + n) for n in (60, 97, 150, 33, 210)]


@cache
def expected(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(cold("llama", tokens, max_new_tokens=3).generated)


def prompt_of(random: np.random.Generator):
    chosen = random.permutation(len(PASSAGES))[: random.integers(1, 4)]
    head = random_tokens(int(random.integers(1, 40)), seed=int(random.integers(6)))
    return joined(head, *(PASSAGES[one] for one in chosen), random_tokens(5, seed=1))


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_ends_in_cold_answers_and_an_empty_house(make, seed, generation):
    random = np.random.default_rng(seed)
    engine = make(
        generation=generation,
        ranks=1 + seed % 2,
        chunk_tokens=int(random.choice([48, 128, 4096])),
        blocks=160,
        options={
            "async_load_tokens": int(random.choice([16, 100, 10_000])),
            "host_donor_bytes": int(random.choice([1 << 20, 8 << 20])),
        },
    )
    executor = engine.executor
    running, climbs = [], 0
    for _ in range(24):
        salt = random.choice([None, "alice", "bob"])
        what = random.random()
        if what < 0.55:
            running.append(executor.submit(prompt_of(random), max_new_tokens=3, cache_salt=salt))
        elif what < 0.7 and running:
            executor.cancel(running[int(random.integers(len(running)))])
        elif what < 0.8:
            executor.blocks.forget_cached()
        else:
            if not climbs:
                # Copies are made beside the traffic: a busy machine could have made none yet.
                engine.hear()
            answer = asyncio.run(engine.ladder(prompt_of(random), cache_salt=salt, max_tokens=2))
            assert not answer.report.get("failed")
            climbs += answer.report["reused_tokens"] > 0
        for _ in range(int(random.integers(4))):
            executor.step()
    engine.settle()
    for request in running:
        if not request.cancelled:
            prompt = tuple(request.get_tokens(0)[: request.prompt_len])
            assert tuple(request.generated) == expected(prompt)
    assert climbs, "some of this traffic can be reused"
    side = engine.scheduler.side
    assert executor.blocks.users == 0
    assert not side.shared.requests
    assert not side.relied_on
    assert len(side.ladders) == 0
    budget = side.room.budget
    assert not any(budget.is_pinned(donor) for donor in budget._donors)
    engine.run(random_tokens(40, seed=9))  # its metadata carries the last orders to let go
    for worker in engine.workers:
        assert worker.side.parts.donors.tiers.memory[0].used_bytes == budget.used_bytes
    materialised = [one for one in engine.records("materialized") if one["materialized"]]
    total = sum(one["materialized_tokens"] for one in materialised)
    assert engine.ledger.totals().tokens["materialised"] == total
