"""Conversations in vLLM go on from their own K/V, and nobody else ever sees what is approximate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend.core.faults import planted
from tests.integration.models import joined, random_tokens

BLOCK = 32
DOCUMENT = random_tokens(420, seed=11)
DONOR = joined(random_tokens(50, seed=12), DOCUMENT, random_tokens(20, seed=13))
TARGET = joined(random_tokens(40, seed=14), DOCUMENT, random_tokens(33, seed=15))
ANSWER = 24


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    promotions, engine.scheduler.promotions = engine.scheduler.promotions, None
    yield engine
    engine.scheduler.promotions = promotions


@pytest.fixture
def promoting(engine):
    """The same engine, which computes conversations exactly when it is idle."""
    engine.scheduler.promotions = engine.scheduler._start_promotions()
    return engine


def talk(engine, **options):
    """The first turn: a document that is reused, and the answer over approximate K/V."""
    answer = engine.run(TARGET, max_tokens=ANSWER, **options)
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend["approximate"]
    return answer


def followed(prompt, answer, seed, new=12):
    """The next turn of a conversation."""
    said = np.asarray(answer.tokens, dtype=np.int32)
    return joined(prompt, said, random_tokens(new, seed=seed))


def placed(answer):
    return answer.semblend["exact_tokens"] + answer.semblend["continued_tokens"]


def computed(answer):
    said = answer.semblend
    return said["prompt_tokens"] - placed(answer) - said["reused_tokens"]


def private_hashes(engine, answer):
    connector = engine.scheduler_connector
    return connector.hashes[connector.internal(answer.request_id)]


def test_a_conversation_continues_its_own_kv(engine):
    prompt, answer = TARGET, talk(engine)
    for turn in range(2, 6):
        loads = len(engine.scheduler_connector.loads)
        prompt = followed(prompt, answer, seed=100 + turn)
        answer = engine.run(prompt, max_tokens=ANSWER)
        said = answer.semblend
        assert said["outcome"] == "continued"
        assert said["approximate"]
        assert said["reused_tokens"] == 0
        # What a prefix cache computes: the new tokens, and what did not fill a block.
        assert computed(answer) <= 12 + 1 + BLOCK
        assert answer.cached_tokens == placed(answer), "vLLM itself counts them as its own"
        assert len(engine.scheduler_connector.loads) == loads, "nothing is copied"


def test_a_continued_answer_is_that_of_one_long_generation(engine):
    """The K/V taken over is what the conversation was generated with."""
    long = engine.run(TARGET, max_tokens=3 * ANSWER, hints={"capture": False})
    short = talk(engine)
    assert short.tokens == long.tokens[:ANSWER]
    rest = engine.run(joined(TARGET, _array(short.tokens)), max_tokens=2 * ANSWER)
    assert rest.semblend["outcome"] == "continued"
    assert rest.tokens == long.tokens[ANSWER:]


def test_who_does_not_continue_the_conversation_finds_nothing_of_it(engine):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)
    assert engine.run(second, max_tokens=ANSWER).semblend["continued_tokens"] > 0
    head = 40 // BLOCK * BLOCK
    stranger = {"hints": {"capture": False}}
    # The same question without the answer, or with another one: only the exact head.
    repeated = engine.run(TARGET, **stranger)
    assert (placed(repeated), repeated.semblend["continued_tokens"]) == (head, 0)
    other = engine.run(joined(TARGET, random_tokens(20, seed=8)), **stranger)
    assert (placed(other), other.semblend["continued_tokens"]) == (head, 0)
    # The same conversation without leave to reuse is computed, exactly.
    cold = engine.cold(second)
    plain = engine.run(second, hints={"reuse": False, "capture": False})
    assert plain.cached_tokens == head
    assert plain.tokens == cold.tokens
    assert not plain.semblend["approximate"]


def test_a_chain_is_never_continued_across_salts_or_policies(engine):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)
    assert engine.run(second, hints={"capture": False}).semblend["continued_tokens"] > 0
    for options in (
        {"salt": "mine"},
        {"hints": {"policy": "span_head(4)", "capture": False}},
        {"hints": {"reuse": False, "capture": False}},
    ):
        assert engine.run(second, **options).semblend["continued_tokens"] == 0


def test_kv_of_a_chain_is_never_donated_and_never_under_a_public_hash(engine):
    answer = talk(engine)
    donors = len(engine.worker.donors)
    second = followed(TARGET, answer, seed=7, new=80)
    again = engine.run(second, max_tokens=ANSWER)
    assert again.semblend["continued_tokens"] > 0
    assert len(engine.worker.donors) == donors
    engine.cold(second)  # its salt gives it other hashes; what follows computes the public ones
    plain = engine.run(second, hints={"reuse": False, "capture": False})
    public = private_hashes(engine, plain)
    mine = private_hashes(engine, again)
    assert not set(public[40 // BLOCK :]) & set(mine[40 // BLOCK :])


def test_a_request_that_may_not_be_kept_cannot_be_continued(engine):
    answer = talk(engine, hints={"capture": False})
    assert len(engine.scheduler.chains) == 0
    assert engine.run(followed(TARGET, answer, seed=7)).semblend["continued_tokens"] == 0


def test_a_fork_of_a_conversation_sees_nothing_of_the_other_branch(engine):
    answer = talk(engine)
    branches = [followed(TARGET, answer, seed=seed, new=40) for seed in (7, 8)]
    alone = [engine.run(branch, max_tokens=ANSWER, hints={"capture": False}) for branch in branches]
    together = engine.run_all(branches, max_tokens=ANSWER)
    for one, other in zip(together, alone, strict=True):
        assert one.semblend["continued_tokens"] > 0
        assert one.tokens == other.tokens
    first, second = (private_hashes(engine, one) for one in together)
    shared = placed(together[0]) // BLOCK
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])
    for branch, one, seed in zip(branches, together, (9, 10), strict=True):
        third = engine.run(followed(branch, one, seed=seed), hints={"capture": False})
        assert placed(third) > len(branch) - BLOCK


def test_a_chain_beyond_what_was_measured_is_computed_anew(engine):
    table = engine.scheduler.chains._table
    turns, table._max_turns = table._max_turns, 3
    try:
        prompt, answer, outcomes = TARGET, talk(engine), []
        for turn in range(2, 6):
            prompt = followed(prompt, answer, seed=100 + turn, new=4)
            answer = engine.run(prompt, max_tokens=4)
            said = answer.semblend
            outcomes.append((said["outcome"], said["continued_tokens"] > 0))
    finally:
        table._max_turns = turns
    continued, anew = ("continued", True), ("materialised", False)
    assert outcomes == [continued, continued, anew, continued]


def test_an_edited_conversation_is_continued_no_further_than_the_edit(engine):
    answer = engine.run(TARGET, max_tokens=80)
    second = followed(TARGET, answer, seed=7)
    at = len(TARGET) + 60
    second[at] = (second[at] + 1) % 100 + 3
    assert 0 < placed(engine.run(second, hints={"capture": False})) <= at
    edited = followed(TARGET, answer, seed=7)
    edited[200] = (edited[200] + 1) % 100 + 3
    assert engine.run(edited, hints={"capture": False}).semblend["continued_tokens"] == 0


def test_eviction_between_turns_computes_the_conversation_anew(engine):
    answer = talk(engine)
    engine.forget_prefixes()
    again = engine.run(followed(TARGET, answer, seed=7))
    assert again.semblend["outcome"] == "materialised"
    assert again.semblend["continued_tokens"] == 0


def test_exact_kv_of_the_conversation_is_preferred(engine):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)
    cold = engine.run(second, hints={"reuse": False, "capture": False})
    again = engine.run(second)
    assert again.semblend["outcome"] == "exact_prefix"
    assert not again.semblend["approximate"]
    assert again.tokens == cold.tokens


def test_donors_are_reused_behind_a_continued_conversation(engine):
    other = random_tokens(300, seed=61)
    engine.run(joined(random_tokens(40, seed=62), other), hints={"reuse": False})
    answer = talk(engine)
    second = joined(followed(TARGET, answer, seed=7, new=40), other, random_tokens(20, seed=63))
    both = engine.run(second, max_tokens=ANSWER)
    said = both.semblend
    assert said["outcome"] == "materialised"
    assert said["continued_tokens"] > 0
    assert said["reused_tokens"] >= 256
    third = engine.run(followed(second, both, seed=9))
    assert placed(third) > len(second) - BLOCK


def test_a_failed_load_behind_a_continued_conversation_stays_private(engine):
    other = random_tokens(300, seed=61)
    engine.run(joined(random_tokens(40, seed=62), other), hints={"reuse": False})
    answer = talk(engine)
    second = joined(followed(TARGET, answer, seed=7, new=40), other, random_tokens(20, seed=63))
    expected = engine.run(
        followed(TARGET, answer, seed=7, new=40), max_tokens=1, hints={"capture": False}
    )
    assert expected.semblend["continued_tokens"] > 0
    with planted("nested_pass:1:1"):
        failed = engine.run(second, max_tokens=ANSWER)
    said = failed.semblend
    assert said["reason"] == "materialisation_failed"
    assert said["reused_tokens"] == 0
    assert said["continued_tokens"] > 0
    assert said["approximate"]
    plain = engine.run(second, hints={"reuse": False, "capture": False})
    assert plain.cached_tokens == 40 // BLOCK * BLOCK
    assert plain.tokens == engine.cold(second).tokens


def test_a_chain_that_cannot_be_looked_up_is_computed(engine, monkeypatch):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)

    def broken(*args):
        raise RuntimeError("table on fire")

    monkeypatch.setattr(engine.scheduler.chains._table, "find", broken)
    again = engine.run(second, hints={"policy": "all", "capture": False})
    assert again.semblend["continued_tokens"] == 0
    assert again.tokens == engine.cold(second).tokens


def test_names_that_were_half_installed_are_taken_back(engine, monkeypatch):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)
    port = engine.scheduler.chains._port
    take_over = port.take_over

    def broken(*args):
        take_over(*args)
        raise RuntimeError("half way")

    monkeypatch.setattr(port, "take_over", broken)
    plain = engine.run(second, hints={"capture": False})
    assert plain.semblend["continued_tokens"] == 0
    assert plain.semblend["exact_tokens"] == 40 // BLOCK * BLOCK


def test_where_reuse_is_turned_off_chains_are_neither_kept_nor_continued(engine, monkeypatch):
    answer = talk(engine)
    second = followed(TARGET, answer, seed=7)
    side = engine.scheduler
    monkeypatch.setattr(side._claims, "_stopped", "evidence")
    off = engine.run(second)
    assert off.semblend["continued_tokens"] == 0
    assert off.tokens == engine.cold(second).tokens
    assert len(side.chains) == 1


def test_chains_stay_within_their_cap_and_the_oldest_goes_first(engine):
    table = engine.scheduler.chains._table
    size, table._max_units = table._max_units, 32
    try:
        heads = [random_tokens(40, seed=seed) for seed in (70, 71, 72)]
        prompts = [joined(head, DOCUMENT, random_tokens(33, seed=15)) for head in heads]
        answers = [engine.run(prompt, max_tokens=ANSWER) for prompt in prompts]
        assert table.units <= 32
        held = [
            engine.run(followed(*turn, seed=30), hints={"capture": False}).semblend[
                "continued_tokens"
            ]
            > 0
            for turn in zip(prompts, answers, strict=True)
        ]
    finally:
        table._max_units = size
    assert held == [False, True, True]


def test_a_conversation_larger_than_the_cap_is_not_kept(engine):
    table = engine.scheduler.chains._table
    size, table._max_units = table._max_units, 8
    try:
        answer = talk(engine)
        assert (len(table), table.units) == (0, 0)
        again = engine.run(followed(TARGET, answer, seed=7), hints={"capture": False})
    finally:
        table._max_units = size
    assert again.semblend["outcome"] == "materialised"
    assert again.semblend["continued_tokens"] == 0


def test_an_answer_that_is_aborted_is_continued_as_far_as_it_came(engine):
    llm, seen = engine.llm.llm_engine, ()
    llm.add_request("cut", {"prompt_token_ids": TARGET.tolist()}, engine.sampling(max_tokens=400))
    while len(seen) < 60:
        for output in llm.step():
            seen = tuple(output.outputs[0].token_ids)
    llm.abort_request(["cut"], internal=False)
    engine.drain()
    second = joined(TARGET, _array(seen), random_tokens(12, seed=7))
    again = engine.run(second, hints={"capture": False})
    assert again.semblend["approximate"]
    assert len(TARGET) < placed(again) <= len(TARGET) + len(seen)
    plain = engine.run(second, hints={"reuse": False, "capture": False})
    assert plain.cached_tokens == 40 // BLOCK * BLOCK
    assert plain.tokens == engine.cold(second).tokens


def test_two_conversations_that_begin_alike_continue_each_its_own(engine):
    """One prompt, two answers: neither finds the other's K/V behind what both have."""
    first = engine.run(TARGET, max_tokens=80)
    other = list(first.tokens)
    other[20] = (other[20] + 1) % 100 + 3
    mine = followed(TARGET, first, seed=7)
    forged = joined(TARGET, _array(other), random_tokens(12, seed=7))
    assert placed(engine.run(mine, hints={"capture": False})) > len(TARGET) + 40
    stranger = engine.run(forged, max_tokens=80)
    assert 0 < placed(stranger) <= len(TARGET) + 20
    # Both are chains now: the stranger's goes on from its own, and the first from its own still.
    for prompt, answer in ((forged, stranger), (TARGET, first)):
        third = engine.run(followed(prompt, answer, seed=9), hints={"capture": False})
        assert placed(third) > len(prompt) + 80 - 2 * BLOCK
    ours, theirs = private_hashes(engine, first), private_hashes(engine, stranger)
    at = (len(TARGET) + 20) // BLOCK
    assert ours[40 // BLOCK : at] == theirs[40 // BLOCK : at]
    assert not set(ours[at:]) & set(theirs[at:])


def test_a_chain_whose_middle_was_evicted_is_continued_no_further(engine):
    answer = talk(engine)
    names = next(iter(engine.scheduler.chains._table)).names
    pool = engine.core.kv_cache_manager.block_pool
    (block,) = pool.get_cached_block(names[6], [0])
    pool.evict_blocks({block.block_id})
    second = followed(TARGET, answer, seed=7)
    again = engine.run(second, max_tokens=ANSWER)
    assert placed(again) == 6 * BLOCK
    assert again.semblend["approximate"]
    third = engine.run(followed(second, again, seed=8), hints={"capture": False})
    assert placed(third) > len(second) - BLOCK, "and the conversation goes on"


def test_after_a_reset_no_conversation_is_continued(engine):
    answer = talk(engine)
    engine.forget_donors()
    second = followed(TARGET, answer, seed=7)
    again = engine.run(second, hints={"capture": False})
    assert again.semblend["continued_tokens"] == 0
    assert again.tokens == engine.cold(second).tokens


# -- promotion ---------------------------------------------------------------------------


def test_a_conversation_that_is_used_again_becomes_exact(promoting):
    engine, free = promoting, promoting.free_blocks()
    first = talk(engine)
    assert len(engine.scheduler.chains) == 1, "used once: not worth it yet"
    second = followed(TARGET, first, seed=7)
    donors = len(engine.worker.donors)
    answer = engine.run(second, max_tokens=ANSWER)
    assert answer.semblend["outcome"] == "continued"
    assert len(engine.scheduler.chains) == 0
    assert engine.free_blocks() == free
    donated = [held.tokens.tolist() for held in engine.worker.donors._donors.values()]
    assert len(donated) == donors + 1
    assert [*second.tolist(), *answer.tokens[:-1]] in donated
    _assert_donors_are_cold(engine)
    third = followed(second, answer, seed=8)
    cold = engine.cold(third)
    exact = engine.run(third)
    assert exact.semblend["outcome"] == "exact_prefix"
    assert not exact.semblend["approximate"]
    assert computed(exact) <= 12 + 1 + BLOCK
    assert exact.tokens == cold.tokens
    kv = engine.kv(exact, 0, len(third))
    cold_kv = engine.kv(engine.cold(third), 0, len(third))
    torch.testing.assert_close(kv, cold_kv, atol=1e-4, rtol=0)


def test_a_promotion_that_is_interrupted_goes_on_where_it_was(promoting):
    engine, promotions = promoting, promoting.scheduler.promotions
    first = talk(engine)
    promotions._piece = BLOCK
    advance, computed_pieces = promotions._computed, []

    def interrupted(current):
        advance(current)
        computed_pieces.append(current.published)
        if len(computed_pieces) == 3:
            promotions.orders(idle=False)  # a request came

    promotions._computed = interrupted
    engine.run(followed(TARGET, first, seed=7), max_tokens=ANSWER)
    whole = computed_pieces[:-1]  # the last piece fills no block
    assert whole == sorted(set(whole)), "no block is computed twice"
    assert len(engine.scheduler.chains) == 0
    _assert_donors_are_cold(engine)


def test_a_promotion_that_fails_leaves_the_chain_to_its_conversation(promoting, monkeypatch):
    engine, free = promoting, promoting.free_blocks()

    def broken(*args, **options):
        raise RuntimeError("kernel failed")

    monkeypatch.setattr(engine.worker.shadows._nested, "logits", broken)
    prompt, answer = TARGET, talk(engine)
    for seed in (7, 8):
        prompt = followed(prompt, answer, seed=seed)
        answer = engine.run(prompt, max_tokens=ANSWER)
        assert answer.semblend["outcome"] == "continued"
    assert engine.free_blocks() == free
    assert not engine.scheduler.promotions.has_pending_work


def test_a_promotion_that_cannot_begin_is_tried_once(promoting, monkeypatch):
    engine, tried = promoting, []

    def broken(*args):
        tried.append(1)
        raise RuntimeError("another vLLM")

    monkeypatch.setattr(engine.scheduler.chains._port, "public_blocks", broken)
    first = talk(engine)
    engine.run(followed(TARGET, first, seed=7), max_tokens=ANSWER)
    assert len(tried) == 1
    assert not engine.scheduler.has_pending_work
    assert len(engine.scheduler.chains) == 2, "its conversation may go on"


# -- donors ------------------------------------------------------------------------------


def test_the_exact_part_of_a_request_is_donated_whatever_the_rest_is(engine):
    head = random_tokens(130, seed=77)
    prompt = joined(head, DOCUMENT, random_tokens(33, seed=78))
    answer = engine.run(prompt)
    assert answer.semblend["outcome"] == "materialised"
    donated = [len(donor.tokens) for donor in engine.worker.donors._donors.values()]
    assert sorted(donated) == [130, len(DONOR)]
    moved = engine.run(
        joined(random_tokens(50, seed=79), head, random_tokens(20, seed=80)),
        hints={"capture": False},
    )
    assert moved.semblend["reused_tokens"] >= 120


def test_decoded_tokens_are_donors_where_all_of_the_request_is_exact(engine):
    prompt = random_tokens(90, seed=90)
    answer = engine.run(prompt, max_tokens=100)
    assert not answer.semblend["approximate"]
    moved = joined(random_tokens(50, seed=91), _array(answer.tokens[:98]), random_tokens(9, 92))
    again = engine.run(moved, hints={"capture": False})
    assert again.semblend["reused_tokens"] >= 80
    _assert_donors_are_cold(engine)


def test_tokens_decoded_over_approximate_kv_are_no_donors(engine):
    answer = engine.run(TARGET, max_tokens=100)
    assert answer.semblend["approximate"]
    said = _array(answer.tokens[:98])
    moved = joined(random_tokens(50, seed=91), said, random_tokens(9, seed=92))
    assert engine.run(moved, hints={"capture": False}).semblend["reused_tokens"] == 0


def test_small_reuse_that_costs_more_donors_than_it_saves_is_declined(engine):
    passage = DOCUMENT[:80]
    prompt = joined(random_tokens(20, seed=60), passage, random_tokens(500, seed=61))
    kept = engine.run(prompt)
    assert kept.semblend["reason"] == "not_worth_it"
    assert "donors" in kept.semblend["detail"]
    assert not kept.semblend["approximate"]
    engine.forget_prefixes()
    # What it would have cost: all of it is found behind other text.
    moved = joined(random_tokens(50, seed=62), prompt[100:], random_tokens(20, seed=63))
    assert engine.run(moved, hints={"capture": False}).semblend["reused_tokens"] >= 480
    # A request that is no donor has none to lose.
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    once = engine.run(prompt, hints={"capture": False})
    assert once.semblend["reused_tokens"] > 0


def test_preempted_conversations_go_on_and_stay_private(make_engine):
    blocks = 29
    engine = make_engine(
        "llama", engine={"max_model_len": 832, "kv_cache_memory_bytes": blocks * 32 * 1536}
    )
    engine.donate(DONOR)
    answer = talk(engine)
    branches = [followed(TARGET, answer, seed=seed, new=100) for seed in (7, 8, 9)]
    alone = [engine.run(branch, max_tokens=32, hints={"capture": False}) for branch in branches]
    together = engine.run_all(branches, max_tokens=32, hints={"capture": False})
    connector = engine.scheduler_connector
    requests = [connector.requests[connector.internal(one.request_id)] for one in together]
    assert sum(request.num_preemptions for request in requests) > 0
    for one, other in zip(together, alone, strict=True):
        assert one.semblend["continued_tokens"] > 0
        assert one.semblend["approximate"]
        assert one.tokens == other.tokens
    plain = engine.run(branches[0], hints={"reuse": False, "capture": False})
    assert plain.cached_tokens <= 40 // BLOCK * BLOCK
    assert plain.tokens == engine.cold(branches[0]).tokens


def _assert_donors_are_cold(engine):
    """Every donor's K/V is what a cold prefill of its tokens computes."""
    for donor_id, donor in list(engine.worker.donors._donors.items()):
        with engine.worker.donors.lease(donor_id, 0, len(donor.tokens)) as held:
            mine = torch.cat([piece.kv for piece in held.pieces], dim=2)[:, :, : len(donor.tokens)]
        cold = engine.cold(donor.tokens, max_tokens=1)
        torch.testing.assert_close(mine, engine.kv(cold, 0, len(donor.tokens)), atol=1e-4, rtol=0)


def _array(tokens):
    return np.asarray(tokens, dtype=np.int32)
