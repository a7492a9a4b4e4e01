"""Promise: an engine that reuse was not proven with starts, and answers as it does without us.

What cannot be loaded is discovered; where vLLM's interface is not as we know it, the connector does
nothing. One line says so. SEMBLEND_STRICT_START refuses by name instead.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.distributed.kv_transfer import get_kv_transfer_group

from semblend.core.errors import UnsupportedRotaryError
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm import start
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
from semblend.integration.vllm.contract import contract_problems
from semblend.integration.vllm.interface import BASES, KVConnectorBase_V1
from tests.integration.models import joined, random_tokens
from tests.integration.vllm.engines import Engine, transfer_config
from tests.integration.vllm.test_refusals import shared_with

DOCUMENT = random_tokens(600, seed=1)
PROMPTS = [joined(random_tokens(40 + 7 * i, seed=2 + i), DOCUMENT) for i in range(2)]
PUBLIC = transfer_config(
    module="semblend.integration.vllm.connector_v1",
    name="SemBlendConnectorV1",
    mode="segmented_experimental",
    recompute_policy="none",
)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Our warnings about how far we go; vLLM takes handlers away when it starts."""
    lines: list[str] = []
    handle = logging.Logger.handle

    def recorded(logger: logging.Logger, record: logging.LogRecord) -> None:
        starts = ("SemBlend runs as", "SemBlend loads nothing")
        if record.levelno >= logging.WARNING and record.getMessage().startswith(starts):
            lines.append(record.getMessage())
        handle(logger, record)

    monkeypatch.setattr(logging.Logger, "handle", recorded)
    return lambda: lines


_PLAIN: dict[str, list[tuple[int, ...]]] = {}


def plain_answers(model: str) -> list[tuple[int, ...]]:
    """What vLLM answers without a connector."""
    if model not in _PLAIN:
        plain = Engine(model, engine={"worker_cls": "auto", "kv_transfer_config": None})
        _PLAIN[model] = [plain.run(prompt).tokens for prompt in PROMPTS]
        plain.close()
    return _PLAIN[model]


@pytest.fixture
def answers(engines: Any) -> Iterator[Any]:
    """An engine and its answers, which equal those of a plain one."""
    made: list[Engine] = []

    def run(model: str = "llama", **options: Any) -> tuple[Engine, list[Any]]:
        engines.close()
        expected = plain_answers(model)
        made.append(Engine(model, **options))
        found = [made[-1].run(prompt) for prompt in PROMPTS]
        assert [answer.tokens for answer in found] == expected
        return made[-1], found

    yield run
    for engine in made:
        engine.close()


def test_an_unknown_version_discovers(answers, said, monkeypatch):
    monkeypatch.setattr(start, "vllm_version", "0.99.0")
    engine, found = answers()
    assert found[1].semblend["outcome"] == "discovery_only"
    assert not engine.scheduler_connector.loads
    (line,) = said()
    assert line.startswith("SemBlend runs as discovery_only: vLLM 0.99.0")
    assert "SEMBLEND_STRICT_START" in line


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("granite", {}, "architecture GraniteForCausalLM"),
        ("mistral-windows", {}, "sliding-window attention"),
        (
            "gemma2",
            {"disable_hybrid_kv_cache_manager": None},
            "K/V cache groups (pass --disable-hybrid-kv-cache-manager)",
        ),
    ],
)
def test_an_unsupported_model_discovers(answers, said, model, options, named):
    _, found = answers(model, engine={"kv_transfer_config": PUBLIC, **options})
    assert found[1].semblend["outcome"] == "discovery_only"
    assert found[1].semblend["reused_tokens"] == 0
    (line,) = said()
    assert named in line


def test_an_unsupported_feature_discovers(answers, said):
    """Without our worker class nobody can compute holes."""
    _, found = answers(engine={"worker_cls": "auto"})
    assert found[1].semblend["outcome"] == "discovery_only"
    (line,) = said()
    assert "--worker-cls" in line


def new_abstract_method(patched: pytest.MonkeyPatch) -> str:
    def prepare_everything(self: Any) -> None: ...

    patched.setattr(KVConnectorBase_V1, "prepare_everything", prepare_everything, raising=False)
    patched.setattr(
        KVConnectorBase_V1,
        "__abstractmethods__",
        KVConnectorBase_V1.__abstractmethods__ | {"prepare_everything"},
    )
    patched.setattr(
        SemBlendConnectorV1,
        "__abstractmethods__",
        frozenset({"prepare_everything"}),
    )
    return "prepare_everything must be implemented"


def changed_signature(patched: pytest.MonkeyPatch) -> str:
    def get_num_new_matched_tokens(self: Any, request: Any, tokens: int, budget: int) -> Any: ...

    patched.setattr(KVConnectorBase_V1, "get_num_new_matched_tokens", get_num_new_matched_tokens)
    return "KVConnectorBase_V1.get_num_new_matched_tokens"


def missing_attribute(patched: pytest.MonkeyPatch) -> str:
    from semblend.integration.vllm import contract

    patched.setattr(contract, "_REQUEST", (*contract._REQUEST, "salt_of_the_cache"))
    return "Request has no salt_of_the_cache"


def unreadable_model(patched: pytest.MonkeyPatch) -> str:
    from semblend.integration.vllm import setup

    def cost_model(config: Any) -> Any:
        raise AttributeError("this configuration has no hidden_size")

    patched.setattr(setup, "cost_model", cost_model)
    return "no hidden_size"


CHANGES = [new_abstract_method, changed_signature, missing_attribute, unreadable_model]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_interface_that_is_not_as_known_leaves_a_connector_that_does_nothing(
    answers, said, monkeypatch, change
):
    named = change(monkeypatch)
    _, found = answers(engine={"kv_transfer_config": PUBLIC})
    assert all(answer.semblend == {} for answer in found)
    if change is not unreadable_model:
        assert type(get_kv_transfer_group()).__name__ == "IdleConnector"
    (line,) = said()
    assert line.startswith("SemBlend runs as off")
    assert named in line


def test_the_installed_interface_is_as_known():
    assert contract_problems(SemBlendConnectorV1, BASES) == []


def test_a_version_without_the_later_classes_can_import_the_connector():
    """What vLLM has had only since some version is not needed to start."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            "import vllm.distributed.kv_transfer.kv_connector.v1.base as base\n"
            "del base.SupportsHMA, base.KVConnectorWorkerMetadata\n"
            "import sys, types\n"
            "sys.modules['vllm.distributed.kv_transfer.kv_connector.v1.metrics'] = None\n"
            "from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1 as connector\n"
            "print(connector.build_prom_metrics(None, {}, [], {}))\n",
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "None", done.stderr


def test_a_worker_that_would_move_k_wrongly_loads_nothing(answers, said, monkeypatch):
    """The proof on the real model fails: the scheduler is told, and prompts are computed."""
    from semblend.integration.vllm import worker_port

    def fails(*_: Any, **__: Any) -> None:
        raise UnsupportedRotaryError("self-test: K of layer 0")

    monkeypatch.setattr(worker_port.WorkerSide, "_start_loads", fails)
    engine, found = answers()
    assert not engine.scheduler_connector.loads
    assert found[1].semblend["outcome"] != "materialised"
    (line,) = said()
    assert "self-test: K of layer" in line


def test_loads_ordered_from_an_unfit_worker_are_computed(engines, monkeypatch):
    """Orders that are already on their way fail like any load; nobody waits for them."""
    from semblend.integration.worker.unfit import UnfitWorker

    engines.close()
    engine = Engine("llama")
    try:
        cold = engine.cold(PROMPTS[1])
        engine.donate(PROMPTS[0])
        connector = engine.worker_connector
        connector.worker_side = UnfitWorker("for this test", block_size=32)
        answer = engine.run(PROMPTS[1])
        assert answer.tokens == cold.tokens
        assert engine.scheduler_connector.loads, "it was ordered"
        assert answer.semblend["reason"] == "unsupported"
        assert answer.semblend["reused_tokens"] == 0
        count = len(engine.scheduler_connector.loads)
        engine.forget_prefixes()
        again = engine.run(PROMPTS[1])
        assert again.tokens == cold.tokens
        assert len(engine.scheduler_connector.loads) == count, "and never again"
        assert "for this test" in again.semblend["detail"]
    finally:
        engine.close()


@pytest.mark.parametrize("mode", ["segmented_experimental", "exact_prefix"])
def test_beside_another_connector_nothing_is_loaded(answers, said, tmp_path, mode):
    shared = shared_with(tmp_path, mode=mode)
    engine, found = answers(engine={"kv_transfer_config": shared})
    assert not engine.scheduler_connector.loads
    assert all(answer.semblend.get("reused_tokens", 0) == 0 for answer in found)
    (line,) = said()
    assert "ExampleConnector" in line


def strictly(change: Any) -> Any:
    return pytest.param(change, id=change.__name__)


@pytest.mark.parametrize("change", [strictly(change) for change in CHANGES])
def test_strictly_an_unknown_interface_does_not_start(engines, monkeypatch, change):
    engines.close()
    named = change(monkeypatch)
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises((UnsupportedEngineError, AttributeError)) as refused:
        Engine("llama", engine={"kv_transfer_config": PUBLIC})
    assert named in str(refused.value)


def test_strictly_an_unknown_version_does_not_start(engines, monkeypatch):
    engines.close()
    monkeypatch.setattr(start, "vllm_version", "0.99.0")
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(UnsupportedEngineError, match=r"vLLM 0\.99\.0"):
        Engine("llama")


def test_strictly_an_unsupported_model_does_not_start(engines, monkeypatch):
    engines.close()
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(UnsupportedEngineError, match="GraniteForCausalLM"):
        Engine("granite")
