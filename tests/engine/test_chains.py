"""Conversations go on from their own K/V, and nobody else ever sees what is approximate in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import semblend.engine.scheduler as scheduler_module
from semblend.core.faults import planted
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.tokens import TokenArray
from semblend.engine.api import FinishReason, TokenEvent
from semblend.engine.batch import ComputeRun
from semblend.engine.handle import GenerationResult
from semblend.engine.segmented import compute
from tests.engine.conftest import REUSING, Driver, EngineMaker, same
from tests.engine.models import random_tokens, tiny
from tests.engine.shared_kv import assert_shared_kv_is_cold
from tests.engine.test_engine import DOCUMENT, behind

TOKEN_BYTES = tiny("llama-gqa")[0].kv_shape.token_bytes
PAGE = 8


def followed(prompt: TokenArray, answer: GenerationResult, seed: int, new: int = 12) -> TokenArray:
    """The next turn of a conversation."""
    said = np.asarray(answer.token_ids, dtype=np.int32)
    return np.concatenate((prompt, said, random_tokens(new, seed)))


def first_turn(driver: Driver, head: int = 5, **options: Any) -> tuple[TokenArray, Any]:
    """A document that is reused, and the answer over approximate K/V."""
    options.setdefault("max_tokens", 8)
    prompt = behind(head)
    answer = driver.run(prompt, **options)
    assert answer.report.outcome is Outcome.MATERIALISED
    assert answer.report.approximate
    return prompt, answer


@pytest.fixture
def talking(make_engine: EngineMaker) -> Driver:
    """An engine that has read the document and promotes nothing."""
    driver = make_engine(promotion_tokens=0)
    driver.run(behind(1))
    return driver


def test_a_conversation_continues_its_own_kv(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    for turn in range(2, 6):
        prompt = followed(prompt, answer, seed=100 + turn)
        answer = talking.run(prompt, max_tokens=8)
        report = answer.report
        assert report.outcome is Outcome.CONTINUED
        assert report.approximate
        assert report.reused_tokens == 0
        # What a prefix cache would compute: the new tokens, and what did not fill a page.
        assert report.computed_tokens <= 12 + 1 + PAGE
        total = report.exact_tokens + report.continued_tokens + report.computed_tokens
        assert total == report.prompt_tokens
    totals = talking.engine.pipeline.ledger.totals()
    assert totals.requests[Outcome.CONTINUED] == 4
    assert totals.tokens[Outcome.CONTINUED] > 0


def test_a_continued_answer_is_that_of_one_long_generation(talking: Driver) -> None:
    """The K/V taken over is that which the conversation was generated with, bit by bit."""
    prompt, long = first_turn(talking, max_tokens=24, donate=False)
    _, short = first_turn(talking, max_tokens=8)
    assert short.token_ids == long.token_ids[:8]
    said = np.asarray(short.token_ids, dtype=np.int32)
    rest = talking.run(np.concatenate((prompt, said)), max_tokens=16)
    assert rest.report.outcome is Outcome.CONTINUED
    assert rest.token_ids == long.token_ids[8:]


def test_kv_of_a_chain_is_never_in_the_exact_prefix_cache_and_never_donated(
    talking: Driver,
) -> None:
    prompt, answer = first_turn(talking)
    donors = len(talking.engine.donors)
    second = followed(prompt, answer, seed=7)
    again = talking.run(second, max_tokens=8)
    assert again.report.continued_tokens > 0
    assert assert_shared_kv_is_cold(talking.engine) > donors > 0
    assert len(talking.engine.donors) == donors
    # Who asks the same without having been answered gets exact pages only, and donors.
    fresh = talking.run(np.concatenate((prompt, random_tokens(9, 8))), donate=False)
    assert fresh.report.continued_tokens == 0
    assert fresh.report.exact_tokens == 16
    assert talking.run(prompt, donate=False).report.continued_tokens == 0


def test_a_chain_is_never_continued_across_tenants_salts_or_policies(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7)
    engine = talking.engine
    for options in (
        {"namespace": engine.namespace(tenant="other")},
        {"namespace": engine.namespace(cache_salt="mine")},
        {"namespace": engine.namespace(template="other")},
        {"policy": "span_head(4)"},
        {"reuse": False},
    ):
        assert talking.run(second, donate=False, **options).report.continued_tokens == 0
    assert talking.run(second, donate=False).report.continued_tokens > 0


def test_a_request_that_may_not_donate_cannot_be_continued(talking: Driver) -> None:
    prompt, answer = first_turn(talking, donate=False)
    assert talking.engine.stats().chains == 0
    assert talking.run(followed(prompt, answer, seed=7)).report.continued_tokens == 0


def test_a_chain_beyond_what_was_measured_is_computed_anew(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=0, chain_turns=3)
    driver.run(behind(1))
    prompt, answer = first_turn(driver, max_tokens=4)
    outcomes = []
    for turn in range(2, 7):
        prompt = followed(prompt, answer, seed=100 + turn, new=4)
        answer = driver.run(prompt, max_tokens=4)
        outcomes.append((answer.report.outcome, answer.report.continued_tokens > 0))
    continued, anew = (Outcome.CONTINUED, True), (Outcome.MATERIALISED, False)
    assert outcomes == [continued, continued, anew, continued, continued]


@pytest.mark.parametrize("where", ["prompt", "answer"])
def test_an_edit_in_the_middle_is_continued_no_further_than_the_edit(
    talking: Driver, where: str
) -> None:
    prompt, answer = first_turn(talking, max_tokens=24)
    second = followed(prompt, answer, seed=7)
    at = 60 if where == "prompt" else len(prompt) + 12
    second[at] = (second[at] + 1 - 3) % 90 + 3
    report = talking.run(second, donate=False).report
    if where == "prompt":
        assert report.continued_tokens == 0
        assert report.outcome is Outcome.MATERIALISED  # spans bridge the edit
    else:
        assert 0 < report.exact_tokens + report.continued_tokens <= at
    talking.engine.flush_prefix_cache()
    expected = talking.run(second, donate=False, policy="all")
    assert same(expected, talking.cold(second))


def test_a_fork_of_a_conversation_sees_nothing_of_the_other_branch(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    branches = [followed(prompt, answer, seed=seed) for seed in (7, 8)]
    alone = [talking.run(branch, max_tokens=12, donate=False) for branch in branches]
    handles = [talking.submit(branch, max_tokens=12) for branch in branches]
    together = [handle.result() for handle in handles]
    for one, other in zip(together, alone, strict=True):
        assert one.report.continued_tokens > 0
        assert one.token_ids == other.token_ids
    for branch, one, seed in zip(branches, together, (9, 10), strict=True):
        third = talking.run(followed(branch, one, seed=seed), donate=False)
        assert third.report.exact_tokens + third.report.continued_tokens > len(branch) - PAGE
    assert_shared_kv_is_cold(talking.engine)


def test_an_answer_aborted_half_way_is_continued_as_far_as_it_came(talking: Driver) -> None:
    prompt = behind(5)
    handle = talking.submit(prompt, max_tokens=200)
    seen: list[int] = []
    for event in handle.events():
        if isinstance(event, TokenEvent):
            seen.append(event.token_id)
            if len(seen) == 20:
                handle.cancel()
    assert handle.result().reason is FinishReason.CANCELLED
    said = np.asarray(seen[:20], dtype=np.int32)
    report = talking.run(np.concatenate((prompt, said, random_tokens(5, 3)))).report
    assert report.exact_tokens + report.continued_tokens == (len(prompt) + 20) // PAGE * PAGE
    assert_shared_kv_is_cold(talking.engine)


def test_a_trimmed_answer_is_continued_as_far_as_it_agrees(talking: Driver) -> None:
    prompt, answer = first_turn(talking, max_tokens=24)
    said = np.asarray(answer.token_ids[:13], dtype=np.int32)
    report = talking.run(np.concatenate((prompt, said, random_tokens(9, 3)))).report
    held = (len(prompt) + 13) // PAGE * PAGE
    assert held <= report.exact_tokens + report.continued_tokens <= held + PAGE


def test_a_template_that_strips_thinking_is_bridged_by_spans(talking: Driver) -> None:
    prompt, answer = first_turn(talking, max_tokens=24)
    said = np.asarray(answer.token_ids[16:], dtype=np.int32)
    second = np.concatenate((prompt, said, random_tokens(9, 3)))
    report = talking.run(second).report
    assert report.continued_tokens == 0
    assert report.outcome is Outcome.MATERIALISED
    assert report.reused_tokens >= 150


def test_chains_stay_within_their_cap_and_the_oldest_goes_first(make_engine: EngineMaker) -> None:
    # Room for two conversations of 192 + 8 tokens, of which 20 tokens are not shared.
    driver = make_engine(promotion_tokens=0, chain_share=400 / 2048)
    driver.run(behind(1))
    turns = [first_turn(driver, head) for head in (5, 7, 9)]
    stats = driver.engine.stats()
    assert stats.chain_bytes <= 400 * TOKEN_BYTES
    assert stats.chains == 2
    held = [
        driver.run(followed(*turn, seed=30), donate=False).report.continued_tokens > 0
        for turn in turns
    ]
    assert held == [False, True, True]


def test_of_a_request_larger_than_the_cap_the_beginning_is_kept(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=0, chain_share=104 / 2048)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    stats = driver.engine.stats()
    assert (stats.chains, stats.chain_bytes) == (1, 104 * TOKEN_BYTES)
    report = driver.run(followed(prompt, answer, seed=7), donate=False).report
    assert report.exact_tokens // PAGE * PAGE + 104 == report.exact_tokens + report.continued_tokens
    assert report.outcome is Outcome.MATERIALISED  # donors bridge the rest
    assert report.reused_tokens > 0


@pytest.mark.parametrize(
    ("room", "options"),
    [(240, {}), (100, {}), (240, {"chain_turns": 1}), (0, {})],
    ids=["fits", "does not fit", "never continued", "no chains"],
)
def test_no_turn_computes_more_than_a_prefix_cache_when_the_history_outgrows_the_cap(
    make_engine: EngineMaker, room: int, options: dict[str, Any]
) -> None:
    """Chains need room for what is approximate, not for the exact history before it."""
    driver = make_engine(promotion_tokens=0, chain_share=room / 2048, **options)
    driver.run(behind(1))
    prompt = random_tokens(230, 90)
    computed, ideal = [], []
    known = 0
    for turn in range(6):
        answer = driver.run(prompt, max_tokens=8)
        computed.append(answer.report.computed_tokens)
        ideal.append(len(prompt) - known // PAGE * PAGE)
        assert driver.engine.stats().chain_bytes <= room * TOKEN_BYTES
        known = len(prompt) + 8 - 1  # the last token has no K/V
        prompt = followed(prompt, answer, seed=91 + turn)
        if turn == 1:
            prompt = np.concatenate((prompt, DOCUMENT, random_tokens(9, 99)))
    assert all(mine <= plain for mine, plain in zip(computed, ideal, strict=True)), computed
    reuses = room == 240 and not options
    assert (computed[2] < ideal[2] / 2) is reuses
    assert_shared_kv_is_cold(driver.engine)


def test_what_cannot_be_continued_is_declined_for_its_next_turn(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=0, chain_share=100 / 2048)
    driver.run(behind(1))
    history = random_tokens(260, 90)
    driver.run(history)
    with_document = np.concatenate((history, DOCUMENT, random_tokens(9, 99)))
    report = driver.run(with_document).report
    assert report.reason is DeclineReason.NOT_WORTH_IT
    assert "the next turn" in report.detail
    # A request that may not be continued by anybody has no next turn.
    fresh = np.concatenate((history, random_tokens(20, 5), DOCUMENT, random_tokens(9, 99)))
    assert driver.run(fresh, donate=False).report.outcome is Outcome.MATERIALISED


def test_of_a_conversation_that_outgrows_the_cap_the_beginning_is_kept(
    make_engine: EngineMaker,
) -> None:
    room = 208
    driver = make_engine(promotion_tokens=0, chain_share=room / 2048)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    for turn in range(2, 8):
        prompt = followed(prompt, answer, seed=100 + turn)
        answer = driver.run(prompt, max_tokens=8)
        report = answer.report
        assert report.outcome is Outcome.CONTINUED
        assert driver.engine.stats().chain_bytes <= room * TOKEN_BYTES
        held = report.exact_tokens // PAGE * PAGE + room
        assert report.computed_tokens <= max(len(prompt) - held, 12 + 1 + PAGE)
    assert len(prompt) > held
    assert_shared_kv_is_cold(driver.engine)


def test_a_chain_is_not_continued_without_the_exact_pages_before_it(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    engine = talking.engine
    assert engine._prefixes is not None
    engine._worker.call(engine._prefixes.clear)
    report = talking.run(followed(prompt, answer, seed=7), donate=False).report
    assert (report.continued_tokens, report.exact_tokens) == (0, 0)
    assert report.outcome is Outcome.MATERIALISED


def test_at_the_cap_a_conversation_that_forks_holds_what_it_shares_once(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine(promotion_tokens=0, chain_share=400 / 2048)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    for seed in range(20, 32):
        branch = followed(prompt, answer, seed=seed)
        report = driver.run(branch, max_tokens=8).report
        assert report.continued_tokens > 0, "every branch uses the trunk, so that it stays"
        assert driver.engine.stats().chain_bytes <= 400 * TOKEN_BYTES
    assert_shared_kv_is_cold(driver.engine)


def test_two_conversations_that_begin_alike_continue_each_its_own(talking: Driver) -> None:
    """One prompt, two answers: neither finds the other's K/V behind what both have."""
    prompt, answer = first_turn(talking, max_tokens=40)
    other = np.asarray(answer.token_ids, dtype=np.int32)
    other[12] = (other[12] + 1 - 3) % 90 + 3
    forged = np.concatenate((prompt, other, random_tokens(12, 7)))
    stranger = talking.run(forged, max_tokens=40)
    held = stranger.report.exact_tokens + stranger.report.continued_tokens
    assert 0 < held <= len(prompt) + 12
    for before, said in ((forged, stranger), (prompt, answer)):
        report = talking.run(followed(before, said, seed=9), donate=False).report
        assert report.exact_tokens + report.continued_tokens > len(before) + 40 - 2 * PAGE
    assert_shared_kv_is_cold(talking.engine)


def test_a_turn_that_is_aborted_at_once_leaves_the_conversation_as_it_was(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7)
    before = talking.run(second, donate=False, max_tokens=8)
    for _ in range(3):
        handle = talking.submit(second, max_tokens=8)
        handle.cancel()
        handle.result()
    after = talking.run(second, donate=False, max_tokens=8)
    assert after.report.continued_tokens == before.report.continued_tokens > 0
    assert after.token_ids == before.token_ids
    assert_shared_kv_is_cold(talking.engine)


def test_eviction_between_turns_computes_the_conversation_anew(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7)
    talking.engine.flush_prefix_cache()
    again = talking.run(second, donate=False)
    assert again.report.continued_tokens == 0
    assert again.report.outcome is Outcome.MATERIALISED


def test_chains_give_way_to_requests(make_engine: EngineMaker) -> None:
    driver = make_engine(
        promotion_tokens=0, pool_bytes=TOKEN_BYTES * 480, chain_share=1.0, prefix_cache=False
    )
    driver.run(behind(1))
    first_turn(driver)
    assert driver.engine.stats().chains == 1
    assert driver.run(random_tokens(440, 3), max_tokens=4).reason is FinishReason.LENGTH
    assert driver.engine.stats().chains == 0


def test_where_reuse_is_turned_off_chains_are_not_continued(talking: Driver) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7)
    engine = talking.engine
    engine.shadow.watch.suspend(engine.pipeline.share_key(engine.namespace()), "evidence")
    off = talking.run(second, donate=False)
    assert off.report.continued_tokens == 0
    assert same(off, talking.cold(second))
    engine.resume_reuse()
    assert talking.run(second, donate=False).report.continued_tokens > 0


@pytest.mark.parametrize(
    "change", [{"discovery_only": True}, {"enabled": False}, {"allow_uncertified": False}]
)
def test_without_leave_to_reuse_chains_are_not_continued(
    talking: Driver, change: dict[str, bool]
) -> None:
    prompt, answer = first_turn(talking)
    talking.engine.pipeline.settings = REUSING.model_copy(update=change)
    report = talking.run(followed(prompt, answer, seed=7), donate=False).report
    assert report.continued_tokens == 0


def test_a_chain_that_cannot_be_looked_up_is_computed(
    talking: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, answer = first_turn(talking)

    def broken(*args: Any) -> None:
        raise RuntimeError("table on fire")

    monkeypatch.setattr(talking.engine._chains, "find", broken)
    again = talking.run(followed(prompt, answer, seed=7), policy="all")
    assert (again.reason, again.report.continued_tokens) == (FinishReason.LENGTH, 0)


def test_a_chain_that_is_not_kept_costs_no_answer(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine()
    driver.run(behind(1))

    def broken(*args: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(driver.engine._chains, "keep", broken)
    _, answer = first_turn(driver)
    assert answer.reason is FinishReason.LENGTH


class FailingPass:
    """Raises once, in the n-th pass from now on."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(
        self, model: Any, pool: Any, runs: Sequence[ComputeRun], **options: Any
    ) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("kernel failed")
        return compute(model, pool, runs, **options)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_pass_over_continued_kv_that_fails_goes_on_as_cold(
    talking: Driver, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7)
    before = talking.run(second, donate=False, max_tokens=8)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "compute", FailingPass(number))
        failed = talking.run(second, donate=False, max_tokens=8)
    assert failed.reason is FinishReason.LENGTH
    assert failed.report.reason is DeclineReason.MATERIALISATION_FAILED
    assert (failed.report.continued_tokens, failed.report.approximate) == (0, False)
    out = number - 1
    assert failed.token_ids[:out] == before.token_ids[:out]
    said = np.asarray(failed.token_ids[:out], dtype=np.int32)
    rest = talking.cold(np.concatenate((second, said)), max_tokens=8 - out)
    assert failed.token_ids[out:] == rest.token_ids
    # What failed may have been the chain's K/V: nobody continues it any more.
    assert talking.run(second, donate=False).report.continued_tokens == 0


def test_a_failed_continuation_that_is_cancelled_while_it_waits_is_settled(
    talking: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, answer = first_turn(talking)
    cancelled = threading.Event()
    withdraw = talking.engine._worker._scheduler._admission.withdraw

    def and_cancel(sequence: Any) -> None:
        withdraw(sequence)
        sequence.handle.cancel()
        cancelled.set()

    admission = talking.engine._worker._scheduler._admission
    monkeypatch.setattr(admission, "withdraw", and_cancel)
    monkeypatch.setattr(scheduler_module, "compute", FailingPass(3))
    result = talking.run(followed(prompt, answer, seed=7), max_tokens=8)
    assert cancelled.is_set()
    assert result.reason is FinishReason.CANCELLED
    assert talking.engine.pipeline.ledger.totals().open_requests == 0


@pytest.mark.parametrize("fault", ["nested_pass", "plan", "index_read", "pool"])
def test_a_fault_at_any_boundary_is_a_cold_answer(talking: Driver, fault: str) -> None:
    prompt, answer = first_turn(talking)
    second = followed(prompt, answer, seed=7, new=40)  # long enough to look for donors of it
    with planted(f"{fault}:1:1") as faults:
        result = talking.run(second, donate=False)
    assert sum(faults.fired.values()) == 1
    assert result.reason is FinishReason.LENGTH
    if not result.report.approximate:
        assert same(result, talking.cold(second))
    assert_shared_kv_is_cold(talking.engine)


# -- promotion ---------------------------------------------------------------------------


def promoted(driver: Driver, tokens: int) -> None:
    """Wait until so many tokens were promoted."""
    deadline = time.monotonic() + 60
    while driver.engine.stats().promoted_tokens < tokens and time.monotonic() < deadline:
        driver.engine._wake()
        time.sleep(0.005)
    assert driver.engine.stats().promoted_tokens >= tokens
    driver.engine.donors.wait()


def test_a_conversation_that_is_used_again_becomes_exact(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=32)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    time.sleep(0.05)
    assert driver.engine.stats().promoted_tokens == 0  # used once: not worth it yet
    second = followed(prompt, answer, seed=7)
    assert driver.engine.promotion is not None
    driver.engine.promotion._step_tokens = 0  # not before its donors are counted
    answer = driver.run(second, max_tokens=8)
    assert answer.report.outcome is Outcome.CONTINUED
    donors = len(driver.engine.donors)
    driver.engine.promotion._step_tokens = 32
    promoted(driver, len(second) + 7 - 16)
    assert driver.engine.stats().chains == 0
    assert len(driver.engine.donors) == donors + 1
    assert assert_shared_kv_is_cold(driver.engine) > 0
    third = followed(second, answer, seed=8)
    exact = driver.run(third, max_tokens=8)
    assert exact.report.outcome is Outcome.EXACT_PREFIX
    assert not exact.report.approximate
    assert exact.report.computed_tokens <= 12 + 1 + PAGE
    assert same(exact, driver.cold(third, max_tokens=8))


def test_promotion_makes_bytes_equal_to_cold(make_engine: EngineMaker) -> None:
    """In passes of the same size promoted K/V is cold's, bit by bit."""
    driver = make_engine(promotion_tokens=64, step_tokens=64)
    engine = driver.engine
    assert engine.promotion is not None
    assert engine._chains is not None
    assert engine._prefixes is not None
    engine.promotion._step_tokens = 0
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    driver.run(followed(prompt, answer, seed=7), max_tokens=8)
    engine._worker.call(engine._prefixes.clear)  # so that it begins with the first token
    (chain,) = engine._chains.used_again()
    tokens = chain.tokens
    engine.promotion._step_tokens = 64
    promoted(driver, len(tokens))
    (name,) = [n for n, held, _ in engine.donors.inventory() if len(held) == len(tokens)]
    with engine.donors.lease(name, 0, len(tokens)) as donor:
        mine = torch.cat([piece.kv for piece in donor.pieces], dim=2)
    other = make_engine(step_tokens=64)
    other.run(np.append(tokens, np.int32(5)), max_tokens=1)
    ((name, _, _),) = other.engine.donors.inventory()
    with other.engine.donors.lease(name, 0, len(tokens)) as donor:
        cold = torch.cat([piece.kv for piece in donor.pieces], dim=2)[:, :, : len(tokens)]
    same_passes = len(tokens) // 64 * 64
    assert same_passes > 150
    assert torch.equal(mine[:, :, :same_passes], cold[:, :, :same_passes])
    torch.testing.assert_close(mine, cold, atol=1e-5, rtol=0)


def test_promotion_that_fails_leaves_the_chain_to_its_conversation(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_engine(promotion_tokens=32)
    driver.run(behind(1))

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("kernel failed")

    monkeypatch.setattr("semblend.engine.promotion.compute", broken)
    prompt, answer = first_turn(driver)
    for seed in (7, 8):
        prompt = followed(prompt, answer, seed=seed)
        answer = driver.run(prompt, max_tokens=8)
        assert answer.report.outcome is Outcome.CONTINUED
    assert driver.engine.stats().promoted_tokens == 0


def test_a_promotion_that_is_interrupted_goes_on_where_it_was(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=8)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    second = followed(prompt, answer, seed=7)
    driver.run(second, max_tokens=8)
    promoted(driver, 16)
    # Requests come in between, and the chain itself is dropped.
    for seed in (40, 41):
        driver.run(random_tokens(60, seed))
        assert_shared_kv_is_cold(driver.engine)
    half = driver.engine.stats().promoted_tokens
    chains = driver.engine._chains
    assert chains is not None
    driver.engine._worker.call(chains.clear)
    assert_shared_kv_is_cold(driver.engine)
    report = driver.run(second, donate=False).report
    assert report.exact_tokens >= min(half, len(second) - PAGE) // PAGE * PAGE
    assert report.continued_tokens == 0


def test_a_chain_is_not_promoted_without_end(make_engine: EngineMaker) -> None:
    driver = make_engine(promotion_tokens=64)
    driver.run(behind(1))
    prompt, answer = first_turn(driver)
    prefixes = driver.engine._prefixes
    assert prefixes is not None
    publish = prefixes.publish

    def lost(*args: Any) -> int:
        added = publish(*args)
        prefixes.clear()
        return added

    prefixes.publish = lost  # type: ignore[method-assign]
    second = followed(prompt, answer, seed=7)
    driver.run(second, max_tokens=8)
    for _ in range(50):
        driver.engine._wake()
        time.sleep(0.005)
    assert driver.engine.stats().promoted_tokens <= 2 * (len(second) + 8) + 64


def test_a_shadow_sample_is_kept_for_all(make_engine: EngineMaker) -> None:
    driver = make_engine(
        promotion_tokens=0, settings=REUSING.model_copy(update={"shadow_rate": 1.0})
    )
    driver.run(behind(1))
    donors = len(driver.engine.donors)
    prompt, answer = first_turn(driver)
    deadline = time.monotonic() + 60
    while not driver.engine.stats().shadow_samples and time.monotonic() < deadline:
        driver.engine._wake()
        time.sleep(0.005)
    driver.engine.donors.wait()
    assert len(driver.engine.donors) == donors + 1
    assert_shared_kv_is_cold(driver.engine)
    again = driver.run(prompt, donate=False)
    assert again.report.exact_tokens >= len(prompt) - PAGE
    assert not again.report.approximate
    # Its conversation is exact as far as the sample went, and goes on.
    report = driver.run(followed(prompt, answer, seed=7), donate=False).report
    assert report.exact_tokens >= len(prompt) - PAGE
    assert report.computed_tokens <= 12 + 1 + PAGE


# -- donors ------------------------------------------------------------------------------


def test_the_exact_part_of_a_request_is_donated_whatever_the_rest_is(talking: Driver) -> None:
    head = random_tokens(70, 77)
    prompt = np.concatenate((head, behind(1)[20:180], random_tokens(12, 78)))
    report = talking.run(prompt).report
    assert report.outcome is Outcome.MATERIALISED
    (donated,) = [t for _, t, _ in talking.engine.donors.inventory() if len(t) == len(head)]
    np.testing.assert_array_equal(donated, head)
    assert_shared_kv_is_cold(talking.engine)
    moved = np.concatenate((random_tokens(10, 79), head, random_tokens(5, 80)))
    assert talking.run(moved, donate=False).report.reused_tokens >= 60


def test_decoded_tokens_are_donors_where_all_of_the_request_is_exact(talking: Driver) -> None:
    prompt = random_tokens(40, 90)
    answer = talking.run(prompt, max_tokens=80)
    assert not answer.report.approximate
    assert_shared_kv_is_cold(talking.engine)
    said = np.asarray(answer.token_ids[:78], dtype=np.int32)
    moved = talking.run(
        np.concatenate((random_tokens(11, 91), said, random_tokens(5, 92))), donate=False
    )
    assert moved.report.reused_tokens >= 70


def test_tokens_decoded_over_approximate_kv_are_no_donors(talking: Driver) -> None:
    _, answer = first_turn(talking, max_tokens=80)
    said = np.asarray(answer.token_ids[:78], dtype=np.int32)
    moved = np.concatenate((random_tokens(11, 91), said, random_tokens(5, 92)))
    assert talking.run(moved, donate=False).report.reused_tokens == 0


def test_small_reuse_that_costs_more_donors_than_it_saves_is_declined(talking: Driver) -> None:
    passage = behind(1)[20:60]
    prompt = np.concatenate((random_tokens(10, 60), passage, random_tokens(250, 61)))
    kept = talking.run(prompt)
    assert kept.report.reason is DeclineReason.NOT_WORTH_IT
    assert "donors" in kept.report.detail
    assert not kept.report.approximate
    talking.engine.flush_prefix_cache()
    moved = np.concatenate((random_tokens(7, 62), prompt[60:300], random_tokens(5, 63)))
    assert talking.run(moved, donate=False).report.reused_tokens >= 230
    # A request that is no donor has none to lose.
    talking.engine.drop_donors()
    talking.engine.flush_prefix_cache()
    talking.run(behind(1))
    assert talking.run(prompt, donate=False).report.reused_tokens > 0
