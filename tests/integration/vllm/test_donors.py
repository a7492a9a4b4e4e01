"""Donors' lives: within their bytes, on disk below, forgotten together, found by meaning."""

from __future__ import annotations

import itertools
import json

import numpy as np

from tests.integration.models import REFERENCE, joined, random_tokens

MEBIBYTE = 1 << 20
"""Holds 682 tokens of the tiny model: one prompt of these, not two."""


def prompt(number, head=50):
    document = random_tokens(420, seed=600 + number)
    return document, joined(random_tokens(head, seed=700 + number), document)


def test_a_donor_that_lost_its_place_is_not_found_any_more(make_engine):
    engine = make_engine("llama", host_donor_bytes=MEBIBYTE)
    first, second = prompt(1), prompt(2)
    engine.donate(first[1])
    engine.donate(second[1])
    engine.drain()
    assert len(engine.worker.donors) == 1
    assert engine.scheduler.planner.pipeline.stats().donors == 1
    (tier,) = engine.worker.donors.tiers.stats()
    assert tier.used_bytes <= MEBIBYTE
    gone = joined(random_tokens(80, seed=1), first[0], random_tokens(20, seed=2))
    assert engine.run(gone, hints={"capture": False}).semblend["reason"] == "no_match"
    kept = joined(random_tokens(80, seed=3), second[0], random_tokens(20, seed=4))
    assert engine.run(kept, hints={"capture": False}).semblend["outcome"] == "materialised"


def test_donors_below_memory_are_read_from_disk(make_engine, tmp_path):
    engine = make_engine(
        "llama",
        host_donor_bytes=MEBIBYTE,
        disk_donor_bytes=64 * MEBIBYTE,
        donor_folder=str(tmp_path),
    )
    documents = [prompt(number) for number in (3, 4, 5)]
    for _, donor in documents:
        engine.donate(donor)
    assert engine.scheduler.planner.pipeline.stats().donors == 3
    assert any((tmp_path / "rank0").rglob("*")), "each rank has a folder of its own"
    target = joined(random_tokens(80, seed=5), documents[0][0], random_tokens(20, seed=6))
    from_disk = engine.run(target, hints={"capture": False})
    assert from_disk.semblend["outcome"] == "materialised"
    engine.forget_prefixes()
    from_memory = engine.run(target, hints={"capture": False})
    assert from_memory.tokens == from_disk.tokens


def test_a_prompt_that_does_not_fit_is_not_kept_and_harms_nobody(make_engine):
    engine = make_engine("llama", host_donor_bytes=MEBIBYTE, min_prompt_tokens=67)
    long = random_tokens(900, seed=7)
    cold = engine.cold(long)
    free = engine.free_blocks()
    assert engine.run(long).tokens == cold.tokens
    assert engine.scheduler.planner.pipeline.stats().donors == 0
    assert engine.free_blocks() == free


def test_nothing_is_evicted_for_a_prompt_that_does_not_fit(make_engine):
    engine = make_engine("llama", host_donor_bytes=MEBIBYTE)
    document, donor = prompt(8)
    engine.donate(donor)
    (before,) = engine.worker.donors.tiers.stats()
    engine.run(random_tokens(900, seed=17))
    (after,) = engine.worker.donors.tiers.stats()
    assert (after.evictions, after.used_bytes) == (before.evictions, before.used_bytes)
    target = joined(random_tokens(80, seed=18), document, random_tokens(20, seed=19))
    assert engine.run(target, hints={"capture": False}).semblend["outcome"] == "materialised"


def test_the_same_prompt_is_kept_once(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    for _ in range(3):
        engine.run(prompt(6)[1], hints={"reuse": False})
        engine.forget_prefixes()
    assert len(engine.worker.donors) == 1


def test_resetting_the_cache_forgets_every_donor_everywhere(make_engine):
    engine = make_engine("llama")
    document, donor = prompt(7)
    engine.donate(donor)
    engine.forget_donors()
    target = joined(random_tokens(80, seed=8), document, random_tokens(20, seed=9))
    assert engine.run(target, hints={"capture": False}).semblend["reason"] == "no_match"
    # The workers are told with the next step.
    assert len(engine.worker.donors) == 0
    assert sum(tier.segments for tier in engine.worker.donors.tiers.stats()) == 0


def test_sampled_capture_keeps_a_share(make_engine):
    engine = make_engine("llama", capture="sampled", capture_sample_ratio=0.5)
    for number in range(16):
        engine.run(random_tokens(80, seed=800 + number), max_tokens=1)
    assert 2 <= engine.scheduler.planner.pipeline.stats().donors <= 14


def test_capture_none_keeps_nothing_not_even_what_asks_for_it(make_engine):
    engine = make_engine("llama", capture="none")
    prompt = random_tokens(300, seed=830)
    engine.run(prompt, hints={"capture": True})
    engine.forget_prefixes()
    assert engine.run(prompt).semblend["reason"] == "no_match"
    assert len(engine.worker.donors) == engine.scheduler.planner.pipeline.stats().donors == 0


def test_donors_of_similar_meaning_are_reported_and_never_loaded(make_engine, tmp_path):
    from transformers import AutoTokenizer

    audit = tmp_path / "audit.jsonl"
    engine = make_engine(
        "reference",
        provider="semblend",
        embedder_type="jaccard",
        min_similarity=0.2,
        audit_path=str(audit),
        engine={"kv_cache_memory_bytes": 128 << 20},
    )
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    words = ("river", "stone", "lamp", "keeper", "market", "bridge", "winter", "letter")
    sentences = [
        f"The {a} of the {b} was sold with the {c}."
        for a, b, c in itertools.product(words, words[:3], words[5:7])
    ]
    for seed in (0, 1):  # the same sentences in another order share no run of 32 tokens
        order = np.random.default_rng(seed).permutation(len(sentences))[:40]
        text = " ".join(sentences[index] for index in order)
        ids = np.array(tokenizer(text)["input_ids"], dtype=np.int32)
        answer = engine.run(ids, max_tokens=2)
        engine.scheduler._meaning.wait()
        engine.scheduler.planner.pipeline.wait_until_learned()
    engine.scheduler.audit.flush()
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    found = [r for r in records if r["event"] == "semantic_lookup_hit" and r["kind"] == "meaning"]
    assert found
    assert found[-1]["similarity"] >= 0.2
    assert answer.semblend["outcome"] != "materialised" or answer.semblend["reused_tokens"] < 200
