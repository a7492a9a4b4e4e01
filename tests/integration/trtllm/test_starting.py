"""Promise: a TensorRT-LLM that reuse was not proven with starts; strictly it refuses by name."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.trtllm import upstream
from semblend.integration.trtllm.connector import (
    SemBlendKvConnectorScheduler,
    SemBlendKvConnectorWorker,
)
from semblend.integration.trtllm.options import VARIABLE
from tests.integration.models import folder_of
from tests.integration.trtllm.engines import llm_args
from tests.integration.trtllm.test_contract import RECORDINGS, module_of

CHANGED = ("KvCacheConnectorScheduler", "get_num_new_matched_tokens")


@pytest.fixture
def unknown_interface(monkeypatch):
    """A TensorRT-LLM whose schedulers are asked with one more argument."""
    module = module_of(RECORDINGS["newer"], changed=CHANGED)
    monkeypatch.setattr(upstream, "connector_module", lambda: module)


@pytest.fixture(autouse=True)
def _mode(monkeypatch):
    monkeypatch.setenv(VARIABLE, '{"mode": "segmented_experimental"}')


def test_an_interface_that_is_not_as_known_leaves_a_connector_that_does_nothing(
    unknown_interface, caplog
):
    caplog.set_level(logging.WARNING)
    arguments = llm_args(folder_of("llama"))
    scheduler, worker = (
        SemBlendKvConnectorScheduler(arguments),
        SemBlendKvConnectorWorker(arguments),
    )
    request = SimpleNamespace(request_id=1)
    assert scheduler.get_num_new_matched_tokens(request, 0, "something new") == (0, False)
    assert scheduler.request_finished(request, [1, 2]) is False
    worker.bind_connector_meta(scheduler.build_connector_meta(SimpleNamespace()))
    assert worker.get_finished([], []) == ([], [])
    (line,) = [line for line in caplog.messages if line.startswith("SemBlend runs as")]
    assert line.startswith("SemBlend runs as off")
    assert ".".join(CHANGED) in line


def test_strictly_an_interface_that_is_not_as_known_does_not_start(unknown_interface, monkeypatch):
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(UnsupportedEngineError, match=r"\.".join(CHANGED)):
        SemBlendKvConnectorScheduler(llm_args(folder_of("llama")))


def test_an_unsupported_model_discovers_and_strictly_does_not_start(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    arguments = llm_args(folder_of("llama-dynamic"))
    scheduler = SemBlendKvConnectorScheduler(arguments)
    (line,) = [line for line in caplog.messages if line.startswith("SemBlend runs as")]
    assert line.startswith("SemBlend runs as discovery_only")
    assert "dynamic" in line
    scheduler.shutdown()
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(UnsupportedEngineError, match="dynamic"):
        SemBlendKvConnectorScheduler(arguments)


def test_strictly_a_pool_that_is_not_as_known_does_not_start(monkeypatch):
    import torch

    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    worker = SemBlendKvConnectorWorker(llm_args(folder_of("llama")))
    try:
        with pytest.raises(UnsupportedEngineError, match="K/V pool"):
            worker.register_kv_caches(torch.zeros(2, 2))
    finally:
        worker.shutdown()
