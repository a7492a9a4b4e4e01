"""Two ranks with schedulers of their own: the same answers as one, and none goes its own way."""

from __future__ import annotations

import pytest

from semblend.quality.suite import Cell
from tests.integration.models import REFERENCE, joined, random_tokens
from tests.integration.quality_items import items_of
from tests.integration.sglang import fault_probes, probes
from tests.integration.sglang.prompts import DOCUMENT, DONOR, TARGET, mixed_requests

TWO = {"tp_size": 2}
COUNTED = ("requests:materialised", "donors_evicted", "load_failures", "waits")


def answers(engine):
    """Cold, with reuse, and with a policy that looks at the model's work first."""
    engine.donate(DONOR)
    said = [engine.cold(TARGET), engine.run(TARGET, hints={"donate": False})]
    engine.call_all(probes.set_policy, "query_attention(0.2)")
    asked = joined(random_tokens(60, seed=7), DOCUMENT, random_tokens(21, seed=8))
    said.append(engine.run(asked, hints={"donate": False}))
    return [(a.tokens, a.semblend["outcome"], a.semblend["reused_tokens"]) for a in said]


def test_two_ranks_answer_as_one(make_engine):
    two = answers(make_engine("llama", server=TWO))
    assert [outcome for _, outcome, _ in two] == ["cold", "materialised", "materialised"]
    assert two == answers(make_engine("llama"))


def certified(engine, items):
    """What is answered and reused under the shipped certificate, whose table is split by heads."""
    said = []
    for item in items:
        for donor in item.donors:
            engine.run(donor, hints={"reuse": False}, max_tokens=1)
        answer = engine.run(item.tokens, hints={"donate": False}, max_tokens=8)
        assert answer.semblend["outcome"] == "materialised"
        assert answer.semblend["certified"] is True
        said.append((answer.tokens, answer.semblend["reused_tokens"]))
    return said


def test_the_certified_policy_chooses_the_same_on_two_ranks(make_engine, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    cells = [Cell(workload="reordered", items=2, specs=(), lengths=(700,))]
    items = list(items_of(cells, 5, tokenizer))
    server = {"context_length": 4096, "max_total_tokens": 40_000, "skip_tokenizer_init": False}
    one = certified(make_engine("reference", mode="segmented", server=server), items)
    two = make_engine("reference", mode="segmented", server={**server, **TWO})
    assert certified(two, items) == one


@pytest.fixture
def pair(make_engine):
    """Two ranks, one layer: reuse is lossless."""
    engine = make_engine("one-layer", server={**TWO, "max_total_tokens": 1600})
    engine.flush()
    assert engine.call_all(probes.donors) == [0, 0]
    return engine


def alike(engine):
    """What both ranks have counted, which is the same."""
    first, second = engine.call_all(probes.counts)
    assert [first.get(name, 0) for name in COUNTED] == [second.get(name, 0) for name in COUNTED]
    for look in (probes.donors, probes.evictable, probes.idle_checks, probes.failures):
        mine, other = engine.call_all(look)
        assert mine == other, look
    engine.assert_no_leak()
    return first


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fault", ["copy:1:1", "nested_pass:1:1", "pool:1:1", "plan:1:1"])
def test_what_fails_on_one_rank_fails_on_both(pair, fault, rank):
    cold = pair.cold(TARGET)
    pair.donate(DONOR)
    plant = pair.call if rank == 0 else lambda *a: pair.call_on(1, *a)
    plant(fault_probes.plant, fault)
    failed = pair.run(TARGET, hints={"donate": False})
    fired = plant(fault_probes.mend)
    assert sum(fired.values()) == 1
    assert failed.tokens == cold.tokens
    assert failed.semblend["reused_tokens"] == 0
    again = pair.run(joined(random_tokens(9, seed=9), TARGET), hints={"donate": False})
    assert again.semblend["outcome"] == "materialised"
    alike(pair)


def test_a_mixed_load_in_a_pool_that_evicts_keeps_ranks_together(pair):
    donors, requests = mixed_requests(24)
    alone = [pair.cold(request).tokens for request in requests]
    for donor in donors:
        pair.donate(donor)
    assert [answer.tokens for answer in pair.run_all(requests)] == alone
    counts = alike(pair)
    assert counts["requests:materialised"] > 3
    assert counts["donors_evicted"] > 0
