"""Promises: the search for harmful donors models reuse as the engine does it, and can succeed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.engine_soak import VOCABULARY
from benchmarks.harmful_donor.__main__ import MODEL, read_rows, report_of
from benchmarks.harmful_donor.borrowed import Reuse, cut, deviation
from benchmarks.harmful_donor.cases import Victim, benign_prefix, make_victim
from benchmarks.harmful_donor.hijack import AIMS, Hijack
from benchmarks.harmful_donor.judging import (
    Judged,
    Noise,
    agreed_after,
    answers_cold,
    judge,
    noise_of,
)
from transformers import LlamaConfig, LlamaForCausalLM

from semblend.core.tokens import TokenArray
from semblend.engine.model import load_model
from semblend.quality.lab import Lab
from semblend.quality.measure import measure

ROOT = Path(__file__).parents[2]


def numbers(size: int, seed: int) -> TokenArray:
    return np.random.default_rng(seed).integers(3, VOCABULARY, size).astype(np.int32)


@pytest.fixture(scope="module")
def tiny() -> Reuse:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return Reuse.of(LlamaForCausalLM(config), "cpu")


@pytest.fixture(scope="module")
def victim() -> Victim:
    """Random tokens; what they say does not matter."""
    case = make_victim(0, _Words()).case
    return Victim(
        number=0,
        case=case,
        head=numbers(9, 1),
        document=numbers(24, 2),
        tail=numbers(4, 3),
        right=numbers(2, 4),
        wrong=numbers(2, 5),
        donor_head=numbers(5, 6),
        donor_tail=numbers(3, 7),
        separator=numbers(1, 8),
    )


class _Words:
    """A tokenizer of letters."""

    chat_template = None
    eos_token_id = 2

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def test_the_parts_of_a_victims_prompt_are_its_prompt_and_both_hold_the_document() -> None:
    made = make_victim(4, _Words())
    prompt = "".join(map(chr, made.tokens))
    assert prompt.endswith("Answer:")
    assert made.case.target.body in prompt
    document = "".join(map(chr, made.document))
    assert document in made.case.target.body
    assert len(document) > 0.9 * len(made.case.target.body)
    donor = "".join(map(chr, made.donor(numbers(8, 1))))
    assert document in donor
    assert made.case.answer in document
    assert made.case.leaked[0] in document
    assert made.case.answer != made.case.leaked[0]


def test_moved_kv_is_what_the_model_computes_there(tiny: Reuse) -> None:
    """Without a context, K/V depends on the position alone, and moving it is exact."""
    first = cut(tiny.read(numbers(20, 9)), 0, 1)
    moved = tiny.moved(first, 0, 1, 7)
    embeds = tiny.embeddings[tiny.ids(numbers(20, 9)[:1])]
    there = tiny.model.model(
        inputs_embeds=embeds, position_ids=torch.tensor([[7]]), use_cache=True
    ).past_key_values
    for (keys, values), layer in zip(moved, there.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(values, layer.values, atol=1e-4, rtol=1e-4)


def test_a_donor_that_reads_the_same_before_the_document_deviates_in_nothing(
    tiny: Reuse, victim: Victim
) -> None:
    same = replace(victim, donor_head=victim.head[:5], separator=victim.head[8:])
    hijack = Hijack(tiny, same, AIMS["naive"], torch.arange(3, VOCABULARY))
    _, away = hijack.context(tiny.embeddings[tiny.ids(victim.head[5:8])])
    assert float(away.max()) < 1e-4
    _, away = hijack.context(tiny.embeddings[tiny.ids(numbers(3, 11))])
    assert float(away.max()) > 1e-2


def test_a_search_makes_the_wrong_answer_likelier_and_uses_real_tokens(
    tiny: Reuse, victim: Victim
) -> None:
    allowed = torch.arange(3, VOCABULARY, 2)
    start = numbers(16, 12) // 2 * 2 + 1
    for aim in AIMS.values():
        hijack = Hijack(tiny, victim, aim, allowed)
        with torch.no_grad():
            before, _ = hijack.objective(tiny.embeddings[tiny.ids(start)])
        found = hijack.search(start, seconds=60, steps=12, tries=16, seed=1)
        with torch.no_grad():
            after, gain = hijack.objective(tiny.embeddings[tiny.ids(found.prefix)])
        assert float(after) < float(before) - 0.05, aim.name
        assert float(gain) == pytest.approx(found.gain, abs=1e-3)
        assert found.steps <= 12
        assert set(found.prefix.tolist()) <= set(allowed.tolist()) | set(start.tolist())
        again = Hijack(tiny, victim, aim, allowed).search(
            start, seconds=60, steps=12, tries=16, seed=1
        )
        assert again.prefix.tolist() == found.prefix.tolist()


def test_heads_that_are_recomputed_are_out_of_the_attackers_reach(
    tiny: Reuse, victim: Victim
) -> None:
    everything = replace(AIMS["aware"], exact_head=len(victim.document))
    hijack = Hijack(tiny, victim, everything, torch.arange(3, VOCABULARY))
    with torch.no_grad():
        gains = [
            float(hijack.objective(tiny.embeddings[tiny.ids(numbers(8, seed))])[1])
            for seed in (1, 2)
        ]
    assert gains[0] == pytest.approx(gains[1], abs=1e-5)


def test_deviation_is_relative_and_by_token() -> None:
    exact = [(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4)) for _ in range(5)]
    lent = [(keys, values.clone()) for keys, values in exact]
    for _, values in lent:
        values[:, :, 1] *= 1.5
    assert deviation(exact, lent)[0].tolist() == pytest.approx([0.0, 0.5, 0.0])


def test_heads_are_recomputed_until_two_blocks_agree() -> None:
    quiet, loud = [0.01] * 8, [0.5] * 8
    noise = noise_of([torch.tensor(quiet * 12)])
    assert noise == Noise(head=pytest.approx(0.01), block=pytest.approx(0.01))
    noise = Noise(head=0.1, block=0.1)
    assert agreed_after(torch.tensor(quiet * 4), noise) == 16
    assert agreed_after(torch.tensor(loud + quiet + loud + quiet * 3), noise) == 40
    assert agreed_after(torch.tensor(loud * 4), noise) == 32


JUDGED = Judged(
    aim="naive",
    length=16,
    number=1,
    gain=2.0,
    steps=5,
    prefix=(1, 2),
    right="1852",
    wanted="1705",
    naive="1705",
    certified="18",
    until_agree="1852",
    detected=False,
    head_deviation=0.1,
    agreed_after=24,
    found_by_others=False,
)


def test_the_report_counts_wrong_answers_and_what_the_attacker_wanted(tmp_path: Path) -> None:
    caught = replace(JUDGED, number=2, detected=True)
    harmless = replace(JUDGED, number=3, naive="1852", certified="1852")
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(one.to_dict()) for one in (JUDGED, caught, harmless)]
    path.write_text("\n".join([*lines, '{"cut short']))
    judged = read_rows(path)
    assert judged == [JUDGED, caught, harmless]
    rows = {(row.case, row.metric): row.value for row in report_of(judged, "", policy="p").rows}
    case = "naive, 16 tokens"
    assert rows[case, "donors"] == 3
    assert rows[case, "wrong, naive"] == pytest.approx(2 / 3)
    assert rows[case, "attacker's answer, naive"] == pytest.approx(2 / 3)
    assert rows[case, "wrong, certified"] == pytest.approx(2 / 3)
    assert rows[case, "attacker's answer, certified"] == 0
    assert rows[case, "wrong, certified and detector"] == pytest.approx(1 / 3)
    assert rows[case, "wrong, own principal's donors only"] == 0
    assert rows[case, "wrong, naive, 95 % from"] < 2 / 3 < rows[case, "wrong, naive, 95 % to"]
    assert rows["naive, all", "donors"] == 3
    found = report_of([replace(JUDGED, found_by_others=True)], "", policy="p").rows
    assert [r.value for r in found if r.metric == "wrong, own principal's donors only"] == [1, 1]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    torch.set_num_threads(1)
    made = Lab(load_model(str(ROOT / MODEL), device="cpu", dtype="float32"))
    yield made
    made.close()


def test_the_searchs_model_of_reuse_is_the_engines(lab: Lab) -> None:
    tokenizer = lab.model.tokenizer
    made = make_victim(7, tokenizer)
    prefix = benign_prefix(made, 32, tokenizer)
    assert answers_cold(lab, made, prefix)
    reuse = Reuse.load(str(ROOT / MODEL), "cpu")
    records = measure(lab, made.item(prefix), ("none", "span_head(8)"))
    for aim, record in zip(("naive", "aware"), records, strict=True):
        hijack = Hijack(reuse, made, AIMS[aim], torch.arange(3, 9))
        with torch.no_grad():
            context, _ = hijack.context(reuse.embeddings[reuse.ids(prefix)])
            loss = float(reuse.loss(context, made.tail, made.right)) / len(made.right)
        assert loss == pytest.approx(record.nll, rel=0.2)
        assert abs(loss - record.cold_nll) > 1e-5
    judged = judge(
        lab, reuse, made, prefix, Noise(head=9.0, block=9.0), policy="span_head(8)", aim="benign"
    )
    assert not judged.detected
    assert not judged.found_by_others
    assert judged.agreed_after == 16
    assert judged.told("own principal's donors only") == made.case.answer
