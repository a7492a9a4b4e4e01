"""A conversation goes on over its own approximate K/V, and nobody else ever sees it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend.core.tokens import TokenArray
from tests.integration.models import joined, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.engines import Answer
from tests.integration.sglang.prompts import DONOR, TARGET

ANSWER = 12


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    engine.donate(DONOR)
    engine.forwards()
    return engine


def next_turn(prompt: TokenArray, answer: Answer, *, seed: int) -> TokenArray:
    """The same conversation with its answer and a question more."""
    said = np.array(answer.tokens, dtype=np.int32)
    return joined(prompt, said, random_tokens(9, seed=seed))


def first_turn(engine, **options) -> Answer:
    answer = engine.run(TARGET, max_tokens=ANSWER, **options)
    assert answer.semblend["outcome"] == "materialised"
    return answer


def held(prompt: TokenArray) -> int:
    """Tokens of a conversation that have K/V: the last one said has none."""
    return len(prompt) + ANSWER - 1


@pytest.mark.parametrize("exact", [0, 40])
def test_every_turn_computes_what_is_new_and_nothing_else(engine, exact):
    """With and without an exact prefix in the tree, which stays the tree's."""
    prompt = joined(DONOR[:exact], TARGET)
    answer = engine.run(prompt, max_tokens=ANSWER)
    assert (answer.semblend["outcome"], answer.semblend["exact_tokens"]) == ("materialised", exact)
    for turn in range(4):
        kept = engine.kv(answer, 0, len(prompt))
        engine.forwards()
        follow = next_turn(prompt, answer, seed=20 + turn)
        again = engine.run(follow, max_tokens=ANSWER)
        said = again.semblend
        assert (said["outcome"], said["approximate"]) == ("continued", True)
        assert (said["exact_tokens"], said["continued_tokens"]) == (exact, held(prompt) - exact)
        assert again.cached_tokens == held(prompt)
        assert [item[1:] for forward in engine.forwards() for item in forward] == [
            (held(prompt), len(follow) - held(prompt))
        ]
        assert torch.equal(engine.kv(again, 0, len(prompt)), kept), "and it is what it went on from"
        prompt, answer = follow, again
    engine.assert_no_leak()


def test_a_conversation_is_held_once_however_long_it_is(engine):
    before = engine.call(probes.evictable)
    prompt, answer = TARGET, first_turn(engine)
    for turn in range(3):
        assert engine.call(probes.evictable) - before == held(prompt)
        follow = next_turn(prompt, answer, seed=30 + turn)
        prompt, answer = follow, engine.run(follow, max_tokens=ANSWER)


def test_nobody_else_finds_it(engine):
    answer = first_turn(engine)
    follow = next_turn(TARGET, answer, seed=40)
    assert engine.call(probes.tree_holds, follow.tolist()) == 0
    donors = engine.call(probes.donors)
    for options in (
        {"cache_salt": "another"},
        {"extra_key": "another"},
        {"hints": {"reuse": False}},
    ):
        other = engine.run(follow, **options)
        assert other.semblend["continued_tokens"] == 0
        assert other.tokens == engine.cold(follow).tokens
    assert engine.call(probes.donors) - donors == 6, "each of them was computed exactly"
    engine.flush()
    engine.donate(DONOR)
    answer = first_turn(engine)
    repeated = engine.run(TARGET, max_tokens=ANSWER)
    assert repeated.semblend["continued_tokens"] == 0, "a prompt alone continues nothing"
    follow = next_turn(TARGET, answer, seed=42)
    under_another = engine.run(follow, hints={"policy": "span_head(16)"})
    assert under_another.semblend["continued_tokens"] == 0, "another policy made other K/V"
    asked_otherwise = joined(TARGET, random_tokens(ANSWER + 4, seed=41))
    assert engine.run(asked_otherwise).semblend["continued_tokens"] == 0
    engine.assert_no_leak()


def test_what_was_evicted_is_computed_again(engine):
    answer = first_turn(engine)
    follow = next_turn(TARGET, answer, seed=50)
    engine.call(probes.empty_the_tree)
    again = engine.run(follow)
    assert again.semblend["continued_tokens"] == 0
    assert again.tokens == engine.cold(follow).tokens
    engine.assert_no_leak()


def test_a_conversation_that_is_gone_when_it_is_loaded_is_computed_again(engine):
    answer = first_turn(engine)
    follow = next_turn(TARGET, answer, seed=51)
    with engine.broken("semblend.integration.tree.tree_chains.TreeChains.slots"):
        again = engine.run(follow)
    assert again.tokens == engine.cold(follow).tokens
    assert again.semblend["continued_tokens"] == 0
    engine.assert_no_leak()


@pytest.mark.parametrize("fault", ["copy:1", "pool:1"])
def test_a_failed_load_is_computed_exactly(engine, fault):
    answer = first_turn(engine)
    follow = next_turn(TARGET, answer, seed=52)
    with engine.planted(fault) as fired:
        again = engine.run(follow)
    assert sum(fired.values())
    assert again.tokens == engine.cold(follow).tokens
    assert (again.semblend["continued_tokens"], again.cached_tokens) == (0, 0)
    engine.assert_no_leak()


def test_after_as_many_turns_as_were_measured_it_is_computed_anew(engine):
    engine.call(_limit_turns, 2)
    try:
        first = first_turn(engine)
        follow = next_turn(TARGET, first, seed=60)
        second = engine.run(follow, max_tokens=ANSWER)
        assert second.semblend["outcome"] == "continued"
        third = engine.run(next_turn(follow, second, seed=61))
        assert third.semblend["continued_tokens"] == 0
    finally:
        engine.call(_limit_turns, 10)


def test_forks_go_on_side_by_side_and_spans_join_them(engine):
    """Two continue at once; one brings a document that somebody else has read."""
    document = random_tokens(150, seed=70)
    engine.donate(joined(random_tokens(40, seed=71), document, random_tokens(5, seed=72)))
    first = first_turn(engine)
    plain = next_turn(TARGET, first, seed=73)
    longer = joined(next_turn(TARGET, first, seed=74), document, random_tokens(8, seed=75))
    one, two = engine.run_all([plain, longer], max_tokens=ANSWER)
    assert one.semblend["outcome"] == "continued"
    assert two.semblend["outcome"] == "materialised"
    assert two.semblend["continued_tokens"] == held(TARGET) - two.semblend["exact_tokens"]
    assert two.semblend["reused_tokens"] >= 140
    for prompt, answer in ((plain, one), (longer, two)):
        again = engine.run(next_turn(prompt, answer, seed=76))
        assert again.semblend["outcome"] == "continued"
        assert again.semblend["continued_tokens"] + again.semblend["exact_tokens"] == held(prompt)
    engine.assert_no_leak()


def test_retracted_turns_find_their_conversation_again(engine):
    first = first_turn(engine)
    follow = [next_turn(TARGET, first, seed=80 + n) for n in range(3)]
    expected = [engine.run(one, max_tokens=ANSWER).tokens for one in follow]
    engine.call(probes.retract_now, True)
    try:
        rids = engine.submit(follow, max_tokens=ANSWER)
        again = engine.collect(rids)
    finally:
        engine.call(probes.retract_now, False)
    assert engine.call(probes.retractions, rids) > 0
    assert [answer.tokens for answer in again] == expected
    assert {answer.semblend["outcome"] for answer in again} == {"continued"}
    engine.assert_no_leak()


def test_an_exact_answer_is_found_in_other_prompts(engine):
    """After a compaction the summary that was just written is what the next prompt begins with."""
    prompt = random_tokens(80, seed=90)
    answer = engine.run(prompt, max_tokens=120)
    engine.call(probes.wait_for_donors)
    said = np.array(answer.tokens[:-1], dtype=np.int32)
    later = engine.run(joined(random_tokens(30, seed=91), said, random_tokens(9, seed=92)))
    assert later.semblend["outcome"] == "materialised"
    assert later.semblend["reused_tokens"] >= 100
    approximate = first_turn(engine)
    donors = engine.call(probes.donors)
    long = engine.run(next_turn(TARGET, approximate, seed=93), max_tokens=120)
    assert long.semblend["outcome"] == "continued"
    assert engine.call(probes.donors) == donors, "an approximate one is not"
    engine.assert_no_leak()


def _limit_turns(host, turns: int) -> None:
    host.side._loader.chains._table._max_turns = turns
