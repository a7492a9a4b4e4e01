"""Engines with adapters: K/V serves the adapter it was computed with, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from vllm.lora.request import LoRARequest

from semblend.core.errors import DonorError
from semblend.core.faults import planted
from semblend.core.plan import Hole
from semblend.integration.adapter_names import AdapterNames
from semblend.integration.loaded_model.model_identity import content_fingerprint
from semblend.integration.vllm.scheduler_port import requested_adapter
from semblend.integration.worker.sequences import VirtualSequence, block_table
from tests.certificates import certificate_of, write
from tests.integration.models import folder_of, joined, random_tokens
from tests.integration.vllm.lora_adapters import merged, write_adapter
from tests.oracles.composed_model import compose

DOCUMENT = random_tokens(420, seed=161)
DONOR = joined(random_tokens(50, seed=162), DOCUMENT, random_tokens(20, seed=163))
TARGET = joined(random_tokens(110, seed=164), DOCUMENT, random_tokens(33, seed=165))
OTHER = random_tokens(200, seed=166)
# One slot more than adapters: vLLM's CPU kernels run tokens without one with the last slot's.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 3, "max_num_seqs": 4}
UNKEPT = {"capture": False}


def all_holes(load):
    return replace(load, copies=(), holes=(Hole(load.start, load.end),))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two adapters, "a" and "b"."""
    made = []
    for number, name in enumerate("ab", start=1):
        folder = Path(tmp_path_factory.mktemp(name))
        write_adapter(folder, "llama", seed=166 + number)
        made.append(LoRARequest(name, number, str(folder)))
    return made


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama", engine=LORA)
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def test_a_base_request_reuses_as_in_an_engine_without_adapters(make_engine):
    answers = []
    for settings in ({}, LORA):
        engine = make_engine("llama", engine=settings)
        engine.donate(DONOR)
        answer = engine.run(TARGET)
        assert answer.semblend["reused_tokens"] > 400
        answers.append((answer.tokens, engine.kv(answer, 0, len(TARGET))))
    (without, plain), (with_lora, ours) = answers
    assert with_lora == without
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


def test_an_adapters_request_reuses_what_its_own_adapter_computed(engine, adapters):
    a, _ = adapters
    base = engine.cold(TARGET)
    cold = engine.cold(TARGET, lora=a)
    expected = engine.kv(cold, 0, len(TARGET))
    assert cold.tokens != base.tokens
    engine.donate(DONOR, lora=a)
    warm = engine.run(TARGET, lora=a, hints=UNKEPT)
    assert warm.semblend["reused_tokens"] > 400
    load = engine.scheduler_connector.loads[-1]
    assert load.hole_tokens
    composed = compose(merged("llama", seed=167), DONOR, TARGET, load.copies)
    got = engine.kv(warm, 0, len(TARGET)).double()
    torch.testing.assert_close(got, composed.kv, atol=2e-3, rtol=1e-3)
    assert warm.tokens[0] == int(composed.logits[-1].argmax())

    engine.forget_prefixes()
    engine.scheduler_connector.rewrite_load = all_holes
    everything = engine.run(TARGET, lora=a, hints=UNKEPT)
    engine.scheduler_connector.rewrite_load = None
    assert everything.tokens == cold.tokens
    torch.testing.assert_close(
        engine.kv(everything, 0, len(TARGET)), expected, atol=5e-4, rtol=1e-3
    )


def test_donors_never_go_from_one_adapter_to_another(engine, adapters):
    runs = [None, *adapters]
    for lender in runs:
        engine.forget_donors()
        engine.donate(DONOR, lora=lender)
        for borrower in runs:
            engine.forget_prefixes()
            said = engine.run(TARGET, lora=borrower, hints=UNKEPT).semblend
            assert (said["reused_tokens"] > 0) == (borrower is lender), (lender, borrower)


def test_requests_of_one_batch_compute_their_holes_each_with_its_own_adapter(engine, adapters):
    runs = [adapters[0], None, adapters[1]]
    for lora in runs:
        engine.donate(DONOR, lora=lora)
    alone = []
    for lora in runs:
        answer = engine.run(TARGET, lora=lora, hints=UNKEPT)
        alone.append((answer, engine.kv(answer, 0, len(TARGET))))
        engine.forget_prefixes()
    assert len({answer.tokens for answer, _ in alone}) == 3

    beside = engine.run_all([OTHER, TARGET, TARGET, TARGET], lora=[runs[0], *runs], hints=UNKEPT)

    for got, (expected, kv) in zip(beside[1:], alone, strict=True):
        assert got.tokens == expected.tokens
        assert got.semblend["reused_tokens"] == expected.semblend["reused_tokens"] > 0
        torch.testing.assert_close(engine.kv(got, 0, len(TARGET)), kv, atol=1e-5, rtol=1e-5)
    engine.forget_prefixes()
    assert beside[0].tokens == engine.cold(OTHER, lora=runs[0]).tokens


def test_a_fault_under_an_adapter_ends_cold_and_the_prefix_cache_stays_exact(engine, adapters):
    a, b = adapters
    engine.donate(DONOR, lora=a)
    cold = engine.cold(TARGET, lora=a)
    for point in ("nested_pass", "copy"):
        engine.forget_prefixes()
        with planted(f"{point}:1:1") as faults:
            failed = engine.run(TARGET, lora=a, hints=UNKEPT)
        assert sum(faults.fired.values()) == 1
        assert failed.tokens == cold.tokens
        assert failed.semblend["reused_tokens"] == 0
    engine.forget_prefixes()
    assert engine.run(TARGET, lora=a, hints=UNKEPT).semblend["approximate"]
    size = engine.worker.access.block_size
    exact = engine.run(TARGET, lora=a, hints={"reuse": False, "capture": False})
    assert exact.cached_tokens == 110 // size * size, "only the exact head is shared"
    assert exact.tokens == cold.tokens
    assert engine.run(TARGET, lora=b, hints=UNKEPT).cached_tokens == 0


def test_what_is_computed_in_idle_steps_is_the_adapters(engine, adapters):
    """Samples and promotions run beside no request, and what they publish is under its hashes."""
    a, _ = adapters
    cold = engine.cold(TARGET, lora=a, max_tokens=1)
    warm = engine.run(TARGET, lora=a)
    handle = engine.scheduler_connector.requests[
        engine.scheduler_connector.internal(warm.request_id)
    ]
    stand_in = engine.scheduler._port.handle(handle).stand_in(TARGET)
    assert stand_in.block_hashes == handle.block_hashes[: len(stand_in.block_hashes)]
    adapter = requested_adapter(a, AdapterNames())
    for lora, expected in ((adapter, cold.tokens[0]), (None, engine.cold(TARGET).tokens[0])):
        blocks = block_table(range(1, 30))
        item = VirtualSequence(tokens=TARGET, start=0, end=len(TARGET), blocks=blocks, adapter=lora)
        assert int(engine.worker.nested.logits(item, last=8)[-1].argmax()) == expected
    engine.forget_prefixes()


def test_a_pass_after_its_adapter_was_unloaded_leaves_the_engine_working(engine, adapters):
    """A pass in a step without a forward finds the mapping of a step that is long over."""
    a, _ = adapters
    adapted = engine.run(OTHER, lora=a, max_tokens=1)
    assert engine.llm.llm_engine.remove_lora(a.lora_int_id)
    item = VirtualSequence(tokens=TARGET, start=0, end=40, blocks=block_table((1, 2)))
    logits = engine.worker.nested.logits(item, last=8)
    cold = engine.cold(TARGET[:40], max_tokens=1)
    assert logits.shape == (8, 512)
    assert int(logits[-1].argmax()) == cold.tokens[0]
    engine.forget_prefixes()
    assert engine.run(OTHER, lora=a, max_tokens=1).tokens == adapted.tokens


def test_names_and_numbers_that_change_their_meaning_are_not_believed(adapters, tmp_path):
    a, b = adapters
    names = AdapterNames()
    known = requested_adapter(a, names)
    assert requested_adapter(a, names) is known
    assert requested_adapter(b, names).part != known.part
    same_files = requested_adapter(LoRARequest("c", 7, a.lora_path), names)
    assert same_files.weights == known.weights
    assert same_files.part != known.part
    for request, why in (
        (LoRARequest("a", 8, b.lora_path), "this name"),
        (LoRARequest("d", a.lora_int_id, a.lora_path), "this number"),
        (LoRARequest("e", 9, str(tmp_path)), "not found"),
        (LoRARequest("f", 10, "nobody/has-this"), "not found"),
    ):
        with pytest.raises(Exception, match=why):
            requested_adapter(request, names)


def test_a_pass_never_displaces_the_adapters_of_the_step_around_it(engine, adapters):
    """The step's logits are still to come when a pass runs; a load that finds no slot fails."""
    names = AdapterNames()
    a, b = (requested_adapter(one, names) for one in adapters)
    manager = engine.worker.nested._adapters._manager
    cold = engine.cold(OTHER, lora=adapters[0])
    slots, manager.lora_config.max_loras = manager.lora_slots, 1
    manager.remove_all_adapters()
    try:
        assert engine.run(OTHER, lora=adapters[0], hints=UNKEPT).tokens == cold.tokens
        with pytest.raises(DonorError, match="max-loras"):
            engine.worker.nested.prepare(b, alone=False)
        assert a.number in manager.lora_index_to_id
        engine.worker.nested.prepare(a, alone=False)
        engine.worker.nested.prepare(b, alone=True)
        assert b.number in manager.lora_index_to_id
        assert a.number not in manager.lora_index_to_id
    finally:
        manager.lora_config.max_loras = slots
        manager.remove_all_adapters()
    engine.forget_prefixes()
    assert engine.run(OTHER, lora=adapters[0], hints=UNKEPT).tokens == cold.tokens


def test_no_conversation_is_continued_across_adapters(engine, adapters):
    """Token for token the same conversation, and another model's K/V."""
    a = adapters[0]
    engine.donate(DONOR)
    first = engine.run(TARGET, max_tokens=24)
    assert first.semblend["approximate"]
    said = np.asarray(first.tokens, dtype=np.int32)
    second = joined(TARGET, said, random_tokens(12, seed=168))
    theirs = engine.run(second, lora=a, hints=UNKEPT)
    assert theirs.cached_tokens == 0
    assert theirs.semblend["continued_tokens"] == 0
    engine.forget_prefixes()
    assert engine.run(second, lora=a, hints=UNKEPT).tokens == theirs.tokens
    # And the other way round: what an adapter has said is nobody's conversation.
    third = joined(second, np.asarray(theirs.tokens, dtype=np.int32))
    engine.forget_donors()
    mine = engine.run(third, hints=UNKEPT)
    assert (mine.cached_tokens, mine.semblend["continued_tokens"]) == (0, 0)


def test_an_adapter_whose_weights_changed_ends_reuse(engine, tmp_path):
    """Under the same name, number and folder: vLLM reads the files again.

    Of the tests of this engine the last: nothing is reused in it from here on.
    """
    write_adapter(tmp_path, "llama", seed=171)
    lora = LoRARequest("moving", 5, str(tmp_path))
    engine.donate(DONOR, lora=lora)
    assert engine.run(TARGET, lora=lora, hints=UNKEPT).semblend["reused_tokens"] > 400
    engine.forget_prefixes()
    write_adapter(tmp_path, "llama", seed=172)
    assert engine.llm.llm_engine.remove_lora(5)
    answer = engine.run(TARGET, lora=lora, hints=UNKEPT)
    assert answer.semblend["reused_tokens"] == 0
    composed = compose(merged("llama", seed=172), DONOR, TARGET, ())
    assert answer.tokens[0] == int(composed.logits[-1].argmax())
    engine.run(OTHER)  # to be kept: before donors are used or made, weights are looked at
    engine.forget_prefixes()
    again = engine.run(TARGET, hints=UNKEPT).semblend
    assert "the weights changed" in again["detail"]


def test_no_certificate_covers_an_adapter(make_engine, adapters, tmp_path, monkeypatch):
    folder = folder_of("llama")
    config = transformers.AutoConfig.from_pretrained(folder)
    fingerprint = content_fingerprint(Path(folder), config)
    write(tmp_path, certificate_of(fingerprint, policy="span_head(24)"))
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engine = make_engine("llama", engine=LORA, mode="segmented")
    for lora in (None, adapters[0]):
        engine.donate(DONOR, lora=lora)
    assert engine.run(TARGET, hints=UNKEPT).semblend["certified"]
    said = engine.run(TARGET, lora=adapters[0], hints=UNKEPT).semblend
    assert said["reused_tokens"] == 0
    assert said["detail"] == "lora: no certificate covers an adapter"
