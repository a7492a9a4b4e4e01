"""Opt-in: the real connector manager drives the adapter, from a file named by the environment.

    SEMBLEND_TRTLLM_SRC=/path/to/kv_cache_connector.py pytest tests/integration/trtllm

Bookkeeping and abstract classes are upstream's; executor, bindings and collectives are
stand-ins on a CPU. It is not an end-to-end run, and says nothing about kernels.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.integration.models import joined, random_tokens
from tests.integration.trtllm import contract
from tests.integration.trtllm.engines import BLOCK, cold, making
from tests.integration.trtllm.upstream_manager import (
    VARIABLE,
    generation_of,
    manager_of,
    source,
    upstream,
)

PATH = source()
pytestmark = pytest.mark.skipif(
    PATH is None or not PATH.is_file(),
    reason=f"NOT RUN: {VARIABLE} names no upstream kv_cache_connector.py",
)
DOCUMENT = random_tokens(300, seed=1)


@pytest.fixture(scope="module")
def loaded():
    with upstream(PATH) as (module, connector):
        yield module, connector


@pytest.fixture
def make_upstream(loaded, monkeypatch, tmp_path):
    module, connector = loaded
    with making(monkeypatch, tmp_path, stubs=False) as maker:

        def make(**options):
            return maker(
                generation=generation_of(PATH),
                manager=manager_of(module),
                connector=connector,
                **options,
            )

        yield make


def test_live_signatures_are_as_recorded(loaded):
    record = contract.recorded(generation_of(PATH).name)
    assert contract.differences(contract.described(loaded[0]), record) == []


def test_the_adapter_satisfies_the_real_abstract_classes(loaded):
    module, connector = loaded
    assert issubclass(connector.SemBlendKvConnectorScheduler, module.KvCacheConnectorScheduler)
    assert issubclass(connector.SemBlendKvConnectorWorker, module.KvCacheConnectorWorker)
    for kind in (connector.SemBlendKvConnectorScheduler, connector.SemBlendKvConnectorWorker):
        assert not kind.__abstractmethods__


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("options", [{}, {"async_load_tokens": 64}], ids=["sync", "async"])
def test_a_prefix_is_loaded_and_answers_as_cold(make_upstream, options, ranks):
    engine = make_upstream(options=options, ranks=ranks)
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    second = joined(DOCUMENT, random_tokens(30, seed=3))
    request = engine.run(second)
    reference = cold("llama", second)
    assert request.generated == reference.generated
    torch.testing.assert_close(torch.stack(request.logits), torch.stack(reference.logits))
    assert engine.records("materialized")[0]["materialized_tokens"] == 300 // BLOCK * BLOCK
    assert engine.executor.blocks.users == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_ladder_is_served_and_publishes_nothing(make_upstream, ranks):
    engine = make_upstream(ranks=ranks)
    engine.run(joined(random_tokens(24, seed=1), DOCUMENT), cache_salt="alice")
    prompt = joined(random_tokens(32, seed=3), DOCUMENT, random_tokens(9, seed=4))
    answer = asyncio.run(engine.ladder(prompt, cache_salt="alice"))
    assert answer.report["reused_tokens"] > 250
    engine.executor.trace.clear()
    request = engine.run(prompt, cache_salt="alice")
    assert engine.executor.trace[0][1] == 0
    assert request.generated == cold("llama", prompt).generated


def test_chunked_prefill_and_cancellation(make_upstream):
    engine = make_upstream(chunk_tokens=64)
    gone = engine.executor.submit(joined(DOCUMENT, random_tokens(20, seed=8)))
    engine.executor.step()
    engine.executor.cancel(gone)
    engine.settle()
    assert not engine.records("donor_registered")
    engine.run(joined(DOCUMENT, random_tokens(20, seed=2)))
    engine.executor.blocks.forget_cached()
    second = joined(DOCUMENT, random_tokens(150, seed=3))
    assert engine.run(second).generated == cold("llama", second).generated
    assert engine.records("materialized")
    assert engine.executor.blocks.users == 0
