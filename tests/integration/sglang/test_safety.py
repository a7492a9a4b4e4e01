"""Whatever goes wrong, the request is answered as cold, and the tree stays exact."""

from __future__ import annotations

import pytest

from tests.integration.models import joined, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DONOR, TARGET

PACKAGE = "semblend.integration.sglang"
# Where something is made to raise, how often, and what the response then says. Boundaries
# that are fault points are in test_fault_points.py.
STAGES = {
    "planning": ("semblend.integration.provider.SemBlendProvider.plan", None, "declined"),
    "reading the request": (f"{PACKAGE}.scheduler_side.state_of", None, None),
    "comparing tokens": ("semblend.integration.worker.pool_copies.check_tokens", None, "declined"),
    "rotating": ("semblend.kv.torch_copy._turn", None, "declined"),
    "laying holes out, once": (f"{PACKAGE}.nested_pass.NestedPass._batch_of", 1, "declined"),
}


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    engine.donate(DONOR)
    engine.call(probes.take_forwards)
    return engine


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_is_a_cold_prefill(engine, stage):
    target, times, outcome = STAGES[stage]
    cold = engine.cold(TARGET)
    with engine.broken(target, times):
        answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert answer.logprobs == pytest.approx(cold.logprobs, abs=1e-4)
    assert answer.cached_tokens == 0
    assert answer.semblend.get("outcome") in (outcome, "cold", None)
    assert engine.call(probes.donates, answer.request_id) is not engine.call(
        probes.is_tainted, answer.request_id
    ), "a region that was loaded once is never a donor, whatever became of it"
    engine.assert_no_leak()
    again = engine.run(joined(random_tokens(9, seed=77), TARGET))
    assert again.semblend["outcome"] == "materialised", "and the next one is served"


def test_failures_in_a_row_turn_loading_off(engine):
    prompts = [joined(random_tokens(9 + n, seed=70 + n), TARGET) for n in range(4)]
    with engine.planted("copy"):
        said = [engine.run(prompt).semblend for prompt in prompts[:3]]
    assert {one["reason"] for one in said} == {"materialisation_failed"}
    off = engine.run(prompts[3]).semblend
    assert (off["outcome"], off["reason"]) == ("cold", "disabled")


@pytest.mark.parametrize("also", [None, f"{PACKAGE}.exact_recompute.with_regions_computed"])
def test_a_bug_of_ours_in_the_hook_never_stops_the_scheduler(engine, also):
    cold = engine.cold(TARGET)
    with engine.broken("semblend.integration.tree.region_passes.RegionPasses.complete"):
        if also is not None:
            engine.call(probes.break_function, also, None)
        answer = engine.run(TARGET)
    if also is None:
        assert answer.tokens == cold.tokens
        assert answer.cached_tokens == 0
    else:
        assert answer.finished["type"] == "abort", "no answer rather than a wrong one"
    engine.assert_no_leak()
    assert engine.run(TARGET).semblend["outcome"] == "materialised"


def test_a_request_may_say_that_it_neither_reuses_nor_donates(engine):
    before = engine.call(probes.donors)
    answer = engine.run(TARGET, hints={"reuse": False, "donate": False})
    assert answer.cached_tokens == 0
    assert answer.semblend["reason"] == "disabled"
    assert engine.call(probes.donors) == before


def test_the_same_prompt_twice_is_never_an_exact_hit_on_approximate_kv(engine):
    first = engine.run(TARGET)
    second = engine.run(TARGET)
    for answer in (first, second):
        assert answer.semblend["outcome"] == "materialised"
        assert answer.semblend["exact_tokens"] == 0
        assert answer.cached_tokens == 420
    assert first.tokens == second.tokens
    assert engine.call(probes.tree_holds, TARGET.tolist()) == 0
    assert engine.call(probes.donors) == 1, "approximate K/V is never a donor"


def test_what_follows_an_exact_prefix_is_loaded_behind_it(engine):
    """The tree serves the prefix, SemBlend what stands behind the edit."""
    head = random_tokens(64, seed=21)
    engine.donate(joined(head, random_tokens(80, seed=22)))
    target = joined(head, random_tokens(30, seed=23), DONOR[50:470], random_tokens(8, seed=24))
    answer = engine.run(target)
    assert answer.semblend["exact_tokens"] == 64
    assert answer.semblend["reused_tokens"] == 420
    assert answer.cached_tokens == 64 + 420
    engine.assert_no_leak()


@pytest.mark.parametrize(
    "keys", [{"extra_key": "b"}, {"cache_salt": "b"}, {"extra_key": " "}, {"cache_salt": " "}]
)
def test_donors_never_cross_extra_keys_or_salts(engine, keys):
    (name,) = keys
    assert engine.run(TARGET, **keys).semblend["reason"] == "no_match"
    engine.donate(DONOR, **{name: "c"})
    other = joined(random_tokens(90, seed=31), DONOR[50:470], random_tokens(8, seed=32))
    mine = engine.run(other, **{name: "c"})
    assert mine.semblend["outcome"] == "materialised"
    assert engine.run(other, **{name: "d"}).semblend["reused_tokens"] == 0
    engine.assert_no_leak()


def test_requests_that_cannot_be_served_are_refused_by_name(engine):
    answer = engine.run(TARGET, logprob_start_len=0)
    assert answer.semblend["outcome"] == "declined"
    assert (answer.semblend["reason"], answer.semblend["detail"]) == (
        "unsupported",
        "prompt_logprobs",
    )


def test_a_donor_that_left_the_tree_is_computed_and_forgotten(engine):
    cold = engine.cold(TARGET)
    engine.call(probes.empty_the_tree_alone)
    answer = engine.run(TARGET)
    assert answer.tokens == cold.tokens
    assert answer.semblend["reused_tokens"] == 0
    assert engine.counts()["donors_lost"] >= 1


def test_a_donor_is_known_no_longer_than_the_tree_holds_it(engine):
    engine.call(probes.empty_the_tree)
    assert engine.call(probes.donors) == 0
    assert engine.run(TARGET).semblend["reason"] == "no_match"
    assert engine.counts()["donors_evicted"] >= 1


def test_another_donor_takes_the_place_of_a_lost_one(engine):
    engine.call(probes.empty_the_tree_alone)
    engine.call(probes.forget_contents)
    engine.donate(joined(random_tokens(33, seed=41), DONOR[50:470]))
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "materialised"


def test_aborted_requests_leave_nothing_behind(engine):
    long = [joined(random_tokens(20 + n, seed=50 + n), TARGET) for n in range(8)]
    rids = engine.submit(long, max_tokens=400, stream=True)
    for rid in rids:
        engine.abort(rid)
    answers = engine.collect(rids)
    assert {answer.finished["type"] for answer in answers} == {"abort"}
    assert engine.run(TARGET).semblend["outcome"] == "materialised"
    engine.assert_no_leak()


def test_the_leak_check_fires_when_a_slot_is_lost(engine):
    """The negative control: the checks above would have seen a leak."""
    engine.call(probes.lose_a_slot)
    for _ in range(3):
        reported = engine.call(probes.idle_checks)
    assert any(message.startswith("pool: ") for message in reported)
    engine.call(probes.find_the_slot)
    engine.assert_no_leak()


def test_holes_are_rationed_between_requests_of_a_step(engine):
    prompts = [
        joined(random_tokens(150, seed=80 + n), DONOR[50:470], TARGET[-9:]) for n in range(4)
    ]
    alone = [engine.run(prompt) for prompt in prompts]
    engine.call(probes.set_hole_budget, 200)
    try:
        engine.forwards()
        together = engine.run_all(prompts)
        passes = engine.forwards()
    finally:
        engine.call(probes.set_hole_budget, None)
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    holes = [sum(length for _, start, length in one if start == 0) for one in passes]
    assert max(holes) <= 200
    assert engine.counts()["waits"] >= 3


def test_flushing_forgets_every_donor(engine):
    engine.flush()
    assert engine.call(probes.donors) == 0
    assert engine.run(TARGET).semblend["reason"] == "no_match"
