"""Beside other connectors: no store ever holds approximate K/V under an exact name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.kv_offload.base import get_offload_block_hash

from semblend.core.faults import planted
from semblend.core.private_hashes import is_private
from semblend.integration.vllm import neighbours
from tests.integration.models import joined, random_tokens
from tests.integration.vllm.plain_offloading import PlainOffloading
from tests.integration.vllm.test_segmented import DONOR, TARGET

OURS = {
    "kv_connector": "ProbeConnector",
    "kv_connector_module_path": "tests.integration.vllm.probe",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "mode": "segmented_experimental",
        "recompute_policy": "none",
        "min_prompt_tokens": 64,
    },
}
STORE = {
    "cpu_bytes_to_use": 1 << 26,
    "spec_name": "PlainOffloading",
    "spec_module_path": "tests.integration.vllm.plain_offloading",
}
OFFLOADING = {
    "kv_connector": "SemBlendOffloadingConnector",
    "kv_connector_module_path": "semblend.integration.vllm.offloading",
    "kv_role": "kv_both",
    "kv_connector_extra_config": STORE,
}
STOCK = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


def beside(*connectors, policy="recompute"):
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config={"connectors": list(connectors)},
    )


@pytest.fixture(params=["theirs first", "ours first"], scope="module")
def order(request):
    return request.param


@pytest.fixture(scope="module")
def transfer(order):
    """Made once: it gives itself an id, and an engine with another is another engine."""
    return beside(*([OFFLOADING, OURS] if order == "theirs first" else [OURS, OFFLOADING]))


@pytest.fixture
def engine(make_engine, transfer):
    engine = make_engine("llama", engine={"kv_transfer_config": transfer})
    forget(engine)
    return engine


def forget(engine):
    engine.forget_donors()
    engine.forget_prefixes()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    engine.drain()


def exactly(engine, tokens):
    """Computed, or taken from what anybody may call exact: vLLM's own cache, and the store."""
    return engine.run(tokens, hints={"reuse": False, "capture": False})


def names_in_store():
    """The block hashes of everything in the store."""
    return {bytes(get_offload_block_hash(key)) for key in PlainOffloading.manager._policy.chunks}


def names_of(engine, answer):
    connector = engine.scheduler_connector
    return [bytes(each) for each in connector.hashes[connector.internal(answer.request_id)]]


def test_the_store_holds_approximate_blocks_under_names_nobody_can_ask_for(engine):
    cold = engine.cold(TARGET)
    forget(engine)
    engine.donate(DONOR)
    warm = engine.run(TARGET)
    assert warm.semblend["approximate"]
    engine.drain()
    held = names_in_store()
    assert any(is_private(name) for name in held), "approximate blocks are stored, by private names"
    engine.forget_prefixes()
    again = exactly(engine, TARGET)
    assert again.tokens == cold.tokens
    public = names_of(engine, again)
    assert held & set(public) <= set(public[:3]), "the exact head is all that others can find"
    assert again.cached_tokens <= 96


def test_the_connector_listed_first_supplies_a_prompt_that_both_offer(engine, order):
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    exactly(engine, TARGET)
    engine.drain()
    engine.forget_prefixes()
    both = engine.run(TARGET, hints={"capture": False})
    if order == "theirs first":
        assert both.tokens == cold.tokens
        assert both.semblend["outcome"] != "materialised"
    else:
        assert both.semblend["outcome"] == "materialised"
    assert engine.scheduler.planner.pipeline.ledger.totals().open_requests == 0


def test_a_failed_load_answers_as_cold_and_nothing_wrong_is_stored(engine):
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    with planted("copy"):
        warm = engine.run(TARGET)
    assert warm.semblend["outcome"] != "materialised"
    assert warm.tokens == cold.tokens
    engine.drain()
    engine.forget_prefixes()
    assert exactly(engine, TARGET).tokens == cold.tokens


def test_captured_donors_outlive_both_connectors_saves(engine):
    """vLLM frees a request's blocks once both have let go of them."""
    free = engine.free_blocks()
    for seed in range(3):
        engine.run(joined(random_tokens(200, seed=700 + seed), DONOR))
    engine.forget_prefixes()
    assert engine.free_blocks() == free
    assert engine.run(TARGET).semblend["outcome"] == "materialised"


def test_vllms_own_offloading_would_hand_out_approximate_blocks_as_exact(engines, monkeypatch):
    """Why it is refused. Where this fails, vLLM reads hashes late enough and it can be allowed."""
    engines.close()
    monkeypatch.setattr(neighbours, "PROVEN", ("OffloadingConnector",))
    config = beside({**STOCK, "kv_connector_extra_config": STORE}, OURS)
    engine = engines.make("llama", engine={"kv_transfer_config": config})
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    warm = engine.run(TARGET)
    engine.drain()
    engine.forget_prefixes()
    wrong = exactly(engine, TARGET)
    assert wrong.cached_tokens > 400
    assert wrong.tokens == warm.tokens != cold.tokens
    engines.close()


def group_of(*names, policy="recompute"):
    """A MultiConnector of connectors by these names, which need not be installed."""
    transfer = SimpleNamespace(kv_load_failure_policy=policy)
    return SimpleNamespace(
        _connectors=[type(name, (), {})() for name in names],
        _vllm_config=SimpleNamespace(kv_transfer_config=transfer),
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("LMCacheConnectorV1", "names K/V by token ids"),
        ("LMCacheMPConnector", "names K/V by token ids"),
        ("OffloadingConnector", "use SemBlendOffloadingConnector"),
        ("NixlConnector", "the machine that decodes"),
        ("MooncakeConnector", "the machine that decodes"),
        ("MooncakeStoreConnector", "was not proven"),
        ("SomebodysConnector", "was not proven"),
    ],
)
def test_a_neighbour_that_was_not_proven_is_refused_by_name(name, why):
    group = group_of(name, "SemBlendOffloadingConnector")
    (refusal,) = neighbours.neighbour_refusals(group, None)
    assert refusal.feature == f"MultiConnector with {name}"
    assert why in refusal.remedy


def test_the_outer_connectors_failure_policy_counts():
    group = group_of("SemBlendOffloadingConnector", policy="fail")
    (refusal,) = neighbours.neighbour_refusals(group, None)
    assert "kv_load_failure_policy='fail'" in refusal.feature


def test_the_names_are_vllms_own():
    """A renamed connector must not slip from a reason of its own to none."""
    known = set(KVConnectorFactory._registry)
    assert set(neighbours._WHY) <= known
