"""Exact prefixes, natively: what is loaded is what was computed, and nothing else is offered."""

from __future__ import annotations

import pytest
import torch

from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import BLOCK, cold
from tests.integration.trtllm.generations import GENERATIONS

DOCUMENT = random_tokens(300, seed=1)


def same_answer(request, reference):
    assert request.generated == reference.generated
    torch.testing.assert_close(
        torch.stack(request.logits), torch.stack(reference.logits), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", GENERATIONS)
@pytest.mark.parametrize("model", ["llama", "qwen3", "llama-yarn"])
def test_a_prefix_the_engine_has_lost_is_loaded_and_answers_as_cold(make, name, model):
    engine = make(model, generation=GENERATIONS[name])
    first = joined(DOCUMENT, random_tokens(20, seed=2))
    second = joined(DOCUMENT, random_tokens(30, seed=3))
    engine.run(first)
    engine.executor.blocks.forget_cached()
    engine.executor.computed_tokens = 0
    request = engine.run(second)
    same_answer(request, cold(model, second))
    loaded = 300 // BLOCK * BLOCK
    assert engine.executor.computed_tokens == len(second) - loaded
    (confirmed,) = engine.records("materialized")
    assert confirmed["materialized_tokens"] == loaded
    assert confirmed["requires_rope_correction"] is False
    assert engine.ledger.totals().tokens["materialised"] == loaded


def test_loaded_kv_is_the_donors_bit_for_bit(make):
    engine = make()
    donor = engine.executor.submit(joined(DOCUMENT, random_tokens(9, seed=2)), max_new_tokens=3)
    engine.executor.step()
    end = 300 // BLOCK * BLOCK
    before = engine.executor.paged.read(donor.block_ids, end)
    engine.executor.drain()
    engine.settle()
    engine.executor.blocks.forget_cached()
    engine.executor.paged.pools[0].fill_(float("nan"))
    target = engine.executor.submit(joined(DOCUMENT, random_tokens(40, seed=4)), max_new_tokens=3)
    engine.executor.step()
    assert torch.equal(engine.executor.paged.read(target.block_ids, end), before)


def test_what_the_engine_has_itself_is_not_loaded(make):
    engine = make()
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    engine.run(joined(DOCUMENT, random_tokens(20, seed=3)))
    assert not engine.records("materialized")
    assert engine.ledger.totals().tokens["materialised"] == 0


def test_chunked_prefill_keeps_and_loads_the_same(make):
    engine = make(chunk_tokens=64)
    first = joined(DOCUMENT, random_tokens(50, seed=2))
    engine.run(first)
    engine.executor.blocks.forget_cached()
    second = joined(DOCUMENT, random_tokens(200, seed=3))
    request = engine.run(second)
    same_answer(request, cold("llama", second))
    (confirmed,) = engine.records("materialized")
    assert confirmed["materialized_tokens"] == 300 // BLOCK * BLOCK


def test_at_least_one_token_is_left_to_the_engine(make):
    engine = make()
    prompt = random_tokens(20 * BLOCK, seed=5)
    engine.run(prompt)
    engine.executor.blocks.forget_cached()
    request = engine.run(prompt)  # the executor raises if nothing is left
    same_answer(request, cold("llama", prompt))
    assert engine.records("materialized")[0]["materialized_tokens"] == 19 * BLOCK


def test_a_moved_document_is_not_offered_to_an_ordinary_request(make):
    """The engine would publish it as exact K/V under the user's own salt."""
    engine = make()
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    moved = joined(random_tokens(32, seed=6), DOCUMENT, random_tokens(8, seed=7))
    request = engine.run(moved)
    same_answer(request, cold("llama", moved))
    assert not engine.records("materialized")
    assert engine.executor.trace[-1][1] == 0, "all of it was computed"


def test_salts_and_their_absence_are_walls(make):
    for generation in GENERATIONS.values():
        engine = make(generation=generation)
        prompt = joined(DOCUMENT, random_tokens(20, seed=2))
        engine.run(prompt, cache_salt="alice")
        engine.executor.blocks.forget_cached()
        engine.run(prompt, cache_salt="bob")
        engine.run(prompt)
        assert not engine.records("materialized")
        engine.executor.blocks.forget_cached()
        engine.run(prompt, cache_salt="alice")
        assert len(engine.records("materialized")) == 1
