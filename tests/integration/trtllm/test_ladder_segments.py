"""Segmented reuse through the salted ladder: equal to segmented reuse by hand, and private."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from semblend.core.faults import planted
from tests.certificates import certificate_of, write
from tests.integration.models import REFERENCE, joined, plain_model, random_tokens
from tests.integration.trtllm.engines import BLOCK, cold
from tests.integration.trtllm.generations import GENERATIONS
from tests.integration.trtllm.oracle import Borrowed, logits_by_hand

FIRST, SECOND = random_tokens(200, seed=11), random_tokens(180, seed=12)


def climbed(engine, prompt, **options):
    engine.executor.trace.clear()
    return asyncio.run(engine.ladder(prompt, **options))


def loaded_positions(engine, prompt):
    """What no forward computed."""
    computed = {p for _, start, end in engine.executor.trace for p in range(start, end)}
    return sorted(set(range(len(prompt))) - computed)


def borrowed_runs(positions, donor_at):
    """Loaded positions as runs of one donor; `donor_at(position)` is (donor, delta)."""
    runs = []
    for position in positions:
        donor, delta = donor_at(position)
        last = runs[-1] if runs else None
        if last and last.end == position and last.donor is donor and last.delta == delta:
            runs[-1] = Borrowed(last.start, position + 1, donor, delta)
        else:
            runs.append(Borrowed(position, position + 1, donor, delta))
    return runs


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3", "llama-llama3", "llama-yarn"])
def test_two_moved_documents_equal_segmented_reuse_by_hand(make, model, generation):
    engine = make(model, generation=generation)
    one = joined(random_tokens(24, seed=1), FIRST)
    two = joined(random_tokens(40, seed=2), SECOND)
    for donor in (one, two):
        engine.run(donor, cache_salt="alice")
    head, middle, question = (random_tokens(n, seed=n) for n in (33, 21, 15))
    prompt = joined(head, SECOND, middle, FIRST, question)
    answer = climbed(engine, prompt, cache_salt="alice")

    at_second, at_first = len(head), len(head) + len(SECOND) + len(middle)
    donors = (tuple(one.tolist()), tuple(two.tolist()))

    def donor_at(position):
        if position < at_second + len(SECOND):
            return donors[1], at_second - 40
        return donors[0], at_first - 24

    positions = loaded_positions(engine, prompt)
    runs = borrowed_runs(positions, donor_at)
    assert len(runs) == 2
    assert all(run.start % BLOCK == 0 and run.end % BLOCK == 0 for run in runs)
    assert len(positions) >= len(FIRST) + len(SECOND) - 4 * BLOCK
    assert answer.report["reused_tokens"] == len(positions)
    expected = logits_by_hand(plain_model(model), prompt, runs)
    torch.testing.assert_close(answer.output.logits[0], expected, rtol=2e-4, atol=2e-4)
    rotated = [one for one in engine.records("materialized") if one["requires_rope_correction"]]
    assert sum(one["materialized_tokens"] for one in rotated) == len(positions)


def test_a_ladder_publishes_nothing_a_user_could_find(make):
    engine = make()
    engine.run(joined(random_tokens(24, seed=1), FIRST), cache_salt="alice")
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    answer = climbed(engine, prompt, cache_salt="alice")
    assert answer.report["reused_tokens"] > 0
    donors = engine.scheduler.side.planner.pipeline.stats().donors
    for salt in ("alice", None):
        engine.executor.trace.clear()
        request = engine.run(prompt, cache_salt=salt)
        assert engine.executor.trace[0][1] == 0, "no approximate block was found"
        torch.testing.assert_close(
            torch.stack(request.logits), torch.stack(cold("llama", prompt).logits)
        )
    after = engine.scheduler.side.planner.pipeline.stats().donors
    assert after == donors + 2, "the two plain requests became donors, the ladder did not"


def test_a_ladder_reaches_no_other_users_donors(make):
    for generation in GENERATIONS.values():
        engine = make(generation=generation)
        engine.run(joined(random_tokens(24, seed=1), FIRST), cache_salt="alice")
        prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
        for salt in ("bob", None):
            answer = climbed(engine, prompt, cache_salt=salt)
            assert answer.report["reused_tokens"] == 0
            assert loaded_positions(engine, prompt) == []
        assert climbed(engine, prompt, cache_salt="alice").report["reused_tokens"] > 0


def test_when_everything_is_recomputed_the_answer_is_the_cold_one(make):
    engine = make(options={"recompute_policy": "all"})
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    answer = climbed(engine, prompt)
    assert answer.report["reused_tokens"] == 0
    reference = cold("llama", prompt)
    assert answer.output.token_ids == reference.generated
    torch.testing.assert_close(answer.output.logits, torch.stack(reference.logits))


def test_recompute_runs_are_computed(make):
    plain = make(options={"recompute_policy": "none"})
    heads = make(options={"recompute_policy": "span_head(40)"})
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    loaded = []
    for engine in (plain, heads):
        engine.run(joined(random_tokens(24, seed=1), FIRST))
        climbed(engine, prompt)
        loaded.append(loaded_positions(engine, prompt))
    assert loaded[1][0] >= 32 + 40 > loaded[0][0]


def test_without_anything_to_reuse_a_ladder_is_one_request_under_the_users_salt(make):
    engine = make()
    prompt = random_tokens(100, seed=9)
    answer = climbed(engine, prompt, cache_salt="alice")
    assert [start for _, start, _ in engine.executor.trace] == [0]
    reference = cold("llama", prompt)
    assert answer.output.token_ids == reference.generated
    engine.executor.trace.clear()
    engine.run(joined(prompt, random_tokens(5, seed=1)), cache_salt="alice")
    assert engine.executor.trace[0][1] == 96, "it can be shared as any request"


def test_a_failed_load_costs_a_cold_prefill_and_nothing_else(make):
    engine = make()
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    reference = cold("llama", prompt)
    # Blocks that nobody fills must not hold NaN here: the wrong answer is computed, then dropped.
    engine.executor.paged.pools[0].nan_to_num_(0.0)
    with planted("copy:1:1"):
        answer = climbed(engine, prompt)
    assert "InjectedError" in answer.report["failed"]
    assert answer.report["reused_tokens"] == 0
    assert answer.output.token_ids == reference.generated
    torch.testing.assert_close(answer.output.logits, torch.stack(reference.logits))
    assert engine.ledger.totals().reasons["materialisation_failed"] == 1
    assert climbed(engine, prompt).report["reused_tokens"] > 0, "and the next one is served"


def test_many_ladders_climb_at_once(make):
    engine = make(blocks=1024)
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    engine.run(joined(random_tokens(24, seed=2), SECOND))
    prompts = [
        joined(random_tokens(20 + n, seed=50 + n), FIRST, random_tokens(7, seed=n), SECOND, [5])
        for n in range(4)
    ]

    async def together():
        return await asyncio.gather(*(engine.ladder(prompt) for prompt in prompts))

    alone = [climbed(engine, prompt) for prompt in prompts]
    for one, many in zip(alone, asyncio.run(together()), strict=True):
        assert many.report["reused_tokens"] == one.report["reused_tokens"] > 200
        assert many.output.token_ids == one.output.token_ids
    assert len(engine.scheduler.side.ladders) == 0


def test_no_ladder_is_planned_where_the_engine_keeps_no_blocks(make):
    engine = make(args={"enable_block_reuse": False})
    engine.executor.block_reuse = False
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    assert climbed(engine, prompt).report == {"reused_tokens": 0}
    assert "block reuse is off" in engine.records("lookup")[-2]["rejection_reason"]


def test_a_rung_whose_ladder_is_unknown_is_computed(make):
    engine = make()
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    salt = "semblend-ladder:" + "0" * 32
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))
    request = engine.run(prompt, cache_salt=salt)
    assert request.generated == cold("llama", prompt).generated
    assert not engine.records("materialized")


def test_a_dead_desk_means_a_plain_request(make):
    from semblend.integration.ladder_socket import DeskClient
    from semblend.integration.trtllm.ladder_client import LadderLLM
    from tests.integration.trtllm.executor import SimulatedLLM

    engine = make()
    prompt = random_tokens(100, seed=9)

    class Parameters:
        max_tokens = 4

    llm = SimulatedLLM(engine.executor)
    client = LadderLLM(llm, DeskClient("/nowhere/at/all.sock"))
    answer = asyncio.run(client.generate(prompt, Parameters(), cache_salt="alice"))
    assert answer.output.token_ids == cold("llama", prompt).generated
    assert llm.requests == [(100, "alice")]


def test_the_desk_answers_over_its_socket(make, tmp_path):
    from semblend.integration.ladder_socket import DeskClient
    from semblend.integration.trtllm.ladder_client import LadderLLM
    from tests.integration.trtllm.executor import SimulatedLLM
    from tests.integration.trtllm.generations import salt_number

    path = tmp_path / "desk" / "ladder.sock"
    engine = make(options={"ladder_socket": str(path)})
    assert path.stat().st_mode & 0o077 == 0, "nobody else may ask"
    engine.run(joined(random_tokens(24, seed=1), FIRST))
    prompt = joined(random_tokens(32, seed=3), FIRST, random_tokens(9, seed=4))

    class Parameters:
        max_tokens = 4

    client = LadderLLM(SimulatedLLM(engine.executor), DeskClient(path), salt_id=salt_number)
    answer = asyncio.run(client.generate(prompt, Parameters()))
    assert answer.report["reused_tokens"] == climbed(engine, prompt).report["reused_tokens"] > 0
    assert answer.report["certified"] is False


def reference_prompts():
    import transformers
    from benchmarks.suite.documents import case, document_of

    from semblend.quality.texts.documents import DocumentWriter

    tokenizer = transformers.AutoTokenizer.from_pretrained(REFERENCE)
    document = document_of(DocumentWriter(3), 500)
    texts = [
        case(document, instruction=number, fact=fact).text for number, fact in ((0, 1), (2, 0))
    ]
    return [
        np.array(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in texts
    ]


def write_certificate(folder, policy):
    """A certificate of the reference model as if it had been measured with this policy."""
    import transformers

    from semblend.integration.loaded_model.model_identity import content_fingerprint

    config = transformers.AutoConfig.from_pretrained(REFERENCE)
    fingerprint = content_fingerprint(REFERENCE, config)
    assert fingerprint is not None
    write(folder, certificate_of(fingerprint, policy=policy))


def test_under_a_certificate_a_trained_model_answers_as_it_does_cold(make, tmp_path, monkeypatch):
    write_certificate(tmp_path, "span_head(32)")
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engine = make("reference", options={"mode": "segmented"}, blocks=512)
    donor, prompt = reference_prompts()
    engine.run(donor)
    answer = climbed(engine, prompt, max_tokens=8)
    assert answer.report["certified"] is True
    assert answer.report["policy"] == "span_head(32)"
    assert answer.report["reused_tokens"] > 100
    reference = cold("reference", prompt, max_new_tokens=8, blocks=512)
    assert answer.output.token_ids == reference.generated


@pytest.mark.parametrize("certificates", ["none", ""], ids=["none", "as shipped"])
def test_without_a_certificate_that_can_run_here_ladders_load_nothing(
    make, monkeypatch, certificates
):
    """The shipped one names a policy that probes the model, which nobody can do here."""
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", certificates)
    engine = make("reference", options={"mode": "segmented"}, blocks=512)
    donor, prompt = reference_prompts()
    engine.run(donor)
    answer = climbed(engine, prompt, max_tokens=2)
    assert answer.report["reused_tokens"] == 0
    assert not engine.records("materialized")
    found = engine.records("lookup")[-2]
    assert found["rejection_reason"] == "no_certificate"
    engine.executor.blocks.forget_cached()
    engine.run(donor)
    assert len(engine.records("materialized")) == 1, "an exact prefix needs no certificate"
