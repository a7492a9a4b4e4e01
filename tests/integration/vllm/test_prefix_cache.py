"""The exact prefix cache stays exact: checked at the level of block hashes, not only of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integration.models import joined, random_tokens

BLOCK = 32
DOCUMENT = random_tokens(420, seed=11)
DONOR = joined(random_tokens(50, seed=12), DOCUMENT, random_tokens(20, seed=13))
TARGET = joined(random_tokens(110, seed=14), DOCUMENT, random_tokens(33, seed=15))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def published(engine):
    """Hashes under which some block of the exact prefix cache can be found now."""
    pool = engine.core.kv_cache_manager.block_pool
    return {block.block_hash[:32] for block in pool.blocks if block.block_hash is not None}


def exact_hashes(engine, tokens):
    """The hashes vLLM gives these tokens."""
    answer = engine.cold(tokens, max_tokens=1)
    del answer
    from vllm.v1.request import Request

    core = engine.llm.llm_engine.engine_core.engine_core
    request = Request(
        request_id="hashes",
        prompt_token_ids=tokens.tolist(),
        sampling_params=engine.sampling(),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )
    return list(request.block_hashes)


def test_approximate_blocks_are_never_found_under_exact_hashes(engine):
    exact = exact_hashes(engine, TARGET)
    engine.forget_prefixes()
    engine.donate(DONOR)
    warm = engine.run(TARGET)
    first = engine.scheduler_connector.loads[-1].copies[0].target_start // BLOCK
    known = published(engine)
    assert all(bytes(h) in known for h in exact[:first]), "the exact head stays public"
    assert not any(bytes(h) in known for h in exact[first:])
    assert warm.semblend["approximate"]


def test_an_exact_request_after_an_approximate_one_is_exact(engine):
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    engine.run(TARGET)
    exact = engine.run(TARGET, hints={"reuse": False})
    assert exact.cached_tokens == 110 // BLOCK * BLOCK, "only the exact head is shared"
    assert exact.tokens == cold.tokens
    again = engine.run(TARGET, hints={"reuse": False})
    assert again.cached_tokens > 500, "and what it computed is shared from then on"
    assert again.tokens == cold.tokens


def test_decoded_blocks_of_an_approximate_request_are_private_too(engine):
    engine.donate(DONOR)
    warm = engine.run(TARGET, max_tokens=80)
    extended = joined(TARGET, random_tokens(0, seed=0))
    continued = joined(extended, _array(warm.tokens[:-1]), random_tokens(8, seed=16))
    cold = engine.cold(continued)
    exact = engine.run(continued, hints={"reuse": False})
    assert exact.cached_tokens == 110 // BLOCK * BLOCK
    assert exact.tokens == cold.tokens


def test_approximate_requests_are_never_donors(engine):
    engine.donate(DONOR)
    engine.run(TARGET)
    head, donor = sorted(engine.worker.donors._donors.values(), key=lambda held: len(held.tokens))
    assert donor.tokens.tolist() == DONOR.tolist()
    assert head.tokens.tolist() == TARGET[:110].tolist(), "what was computed before the copy"
    assert engine.scheduler.planner.pipeline.stats().donors == 2


def test_a_claim_that_is_not_admitted_leaves_no_trace(engine):
    engine.donate(DONOR)
    request = _waiting_request(engine, TARGET)
    before = list(request.block_hashes)
    claimed, is_async = engine.scheduler_connector.get_num_new_matched_tokens(request, 0)
    assert claimed > 400
    assert is_async, "vLLM recovers exactly only from loads that no step counted on"
    assert request.block_hashes == before
    assert engine.scheduler_connector.get_num_new_matched_tokens(request, 0)[0] == claimed
    engine.core.schedule()  # a step in which the request is not admitted
    assert engine.scheduler.requests["waiting-1"].claim is None
    engine.scheduler.ended(_finished(request), [])
    assert not engine.scheduler.requests


def test_an_offer_the_engine_zeroes_after_asking_is_rolled_back(engine):
    """As vLLM 0.32 does where the tail of its own hit, a part of a block, is as long."""
    exact = exact_hashes(engine, TARGET)
    cold = engine.cold(TARGET)
    engine.forget_prefixes()
    engine.donate(DONOR)
    connector, offers = engine.scheduler_connector, []
    ask = connector.get_num_new_matched_tokens
    loads = len(connector.loads)

    def zeroed(request, computed):
        offers.append(ask(request, computed)[0])
        return 0, False

    connector.get_num_new_matched_tokens = zeroed
    try:
        answer = engine.run(TARGET)
    finally:
        del connector.get_num_new_matched_tokens
    assert offers[0] > 400
    assert len(connector.loads) == loads
    assert answer.tokens == cold.tokens
    assert answer.semblend["reused_tokens"] == answer.cached_tokens == 0
    assert answer.semblend["reason"] == "not_worth_it"
    assert connector.hashes[connector.internal(answer.request_id)][: len(exact)] == exact
    totals = engine.scheduler.planner.pipeline.ledger.totals()
    assert totals.open_requests == 0
    assert engine.holds(TARGET)
    assert engine.run(TARGET, hints={"reuse": False}).tokens == cold.tokens


def test_holes_behind_a_hit_read_what_this_very_step_writes(engine):
    """Two prompts share an exact head; one of them reuses a document behind it.

    vLLM lets the second hit the head's blocks in the step in which the first computes them.
    """
    head = random_tokens(128, seed=20)
    engine.donate(DONOR)
    first = joined(head, random_tokens(40, seed=21))
    second = joined(head, random_tokens(40, seed=22), DOCUMENT, random_tokens(20, seed=23))
    alone = engine.run(second, hints={"capture": False})
    expected = engine.kv(alone, 0, 160)
    engine.forget_prefixes()
    before = len(engine.scheduler_connector.steps)
    _, together = engine.run_all([first, second])
    (load,) = engine.scheduler_connector.loads[-1:]
    assert load.start == 128, "it hit the head"
    assert list(engine.scheduler_connector.steps[before].values()) == [len(first)]
    assert together.tokens == alone.tokens
    got = engine.kv(together, 0, 160)
    assert (got - expected).abs().max() < 1e-4


def test_salted_requests_share_nothing_with_others(engine):
    engine.run(DONOR, salt="tenant-a")
    for salt in (None, "tenant-b", "tenant-a ", " tenant-a", "Tenant-a", "tenant-a\0"):
        other = engine.run(TARGET, salt=salt, hints={"capture": False})
        assert other.semblend["reason"] == "no_match", repr(salt)
        assert other.cached_tokens == 0
    same = engine.run(TARGET, salt="tenant-a")
    assert same.semblend["outcome"] == "materialised"


def test_a_salt_of_spaces_is_a_salt_and_an_empty_one_is_none(engine):
    """As vLLM's own prefix cache has it, which is asked first."""
    engine.run(DONOR)
    for salt in (" ", "\n", "\u00a0"):
        prefix = engine.run(DONOR, salt=salt, hints={"reuse": False, "capture": False})
        other = engine.run(TARGET, salt=salt, hints={"capture": False})
        assert prefix.cached_tokens == other.cached_tokens == 0, repr(salt)
        assert other.semblend["reason"] == "no_match"
    prefix = engine.run(DONOR, salt="", hints={"reuse": False, "capture": False})
    assert prefix.cached_tokens > 0, "vLLM hashes an empty salt as none"
    assert engine.run(TARGET, salt="").semblend["outcome"] == "materialised"


def _array(tokens):
    import numpy as np

    return np.array(tokens, dtype=np.int32)


def _waiting_request(engine, tokens):
    from vllm.v1.request import Request

    core = engine.llm.llm_engine.engine_core.engine_core
    return Request(
        request_id="waiting-1",
        prompt_token_ids=tokens.tolist(),
        sampling_params=engine.sampling(),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )


def _finished(request):
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus.FINISHED_ABORTED
    return request


def test_a_block_that_only_the_answer_fills_is_private_if_its_first_tokens_are_approximate(
    make_engine,
):
    """It has no hash yet when the load is admitted, and its parent's is public."""
    engine = make_engine("llama", engine={"block_size": 128})
    engine.forget_donors()
    engine.forget_prefixes()
    document, head = random_tokens(90, seed=21), random_tokens(256, seed=22)
    engine.donate(joined(random_tokens(50, seed=23), document, random_tokens(20, seed=24)))
    engine.run(joined(head, random_tokens(70, seed=25)), hints={"capture": False})
    target = joined(head, document, random_tokens(5, seed=26))
    warm = engine.run(target, max_tokens=60)
    assert warm.semblend["exact_tokens"] == len(head)
    assert warm.semblend["reused_tokens"] > 0
    known = published(engine)
    whole = joined(target, np.asarray(warm.tokens, dtype=np.int32))
    exact = exact_hashes(engine, whole)
    assert [bytes(h) in known for h in exact] == [True, True, False]
