"""Weights that change under a running engine: donors of the old ones do not survive."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest
import torch

from semblend.integration.scheduler.side import WEIGHTS_CHANGED
from semblend.integration.vllm.worker import CHANGING_METHODS
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.integration.worker.weights import WeightWatch
from tests.integration.models import joined, plain_model, random_tokens
from tests.integration.vllm.engines import WORKER

DOCUMENT = random_tokens(420, seed=211)
DONOR = joined(random_tokens(50, seed=212), DOCUMENT, random_tokens(20, seed=213))
TARGET = joined(random_tokens(110, seed=214), DOCUMENT, random_tokens(33, seed=215))


def reload_other_weights(engine):
    """vLLM's own way, from a folder with other weights."""
    engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": other_weights()})


def change_one_parameter(worker):
    """What a function given to `collective_rpc` may do."""
    with torch.no_grad():
        worker.model_runner.get_model().model.layers[1].input_layernorm.weight.data.mul_(1.5)


def call_a_function(engine):
    engine.llm.collective_rpc(change_one_parameter)


def load_into_the_model(engine):
    """What worker extensions of training frameworks do."""
    weights = plain_model("llama").state_dict()
    name = "model.layers.2.input_layernorm.weight"
    changed = [(name, weights[name] * 1.5)]
    engine.llm.apply_model(lambda model: model.load_weights(changed) and None)


def other_weights() -> str:
    from tests.integration.models import _FOLDER

    folder = _FOLDER / "llama-other-weights"
    if not folder.exists():
        model = plain_model("llama")
        state = {name: value * 1.05 for name, value in model.state_dict().items()}
        model.save_pretrained(folder, state_dict=state)
    return str(folder)


WAYS = {
    "reload_weights": reload_other_weights,
    "a function": call_a_function,
    "load_weights of the model": load_into_the_model,
}


@pytest.fixture
def engine(engines):
    """A new one for every test: the weights of the last are not what its model says."""
    engines.close()
    engine = engines.make("llama")
    engine.donate(DONOR)
    yield engine
    engines.close()


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_old_weights_is_reused(engine, way):
    assert engine.run(TARGET, hints={"capture": False}).semblend["reused_tokens"] > 400
    engine.forget_prefixes()
    WAYS[way](engine)
    cold = engine.cold(TARGET)
    first = engine.run(TARGET)
    second = engine.run(TARGET, salt="again")
    assert first.tokens == cold.tokens == second.tokens
    assert first.semblend["reused_tokens"] == second.semblend["reused_tokens"] == 0
    assert len(engine.worker.donors) == 0
    assert second.semblend["reason"] == "discovery_only"
    assert second.semblend["detail"] == WEIGHTS_CHANGED
    assert engine.scheduler.planner.pipeline.ledger.totals().open_requests == 0


def test_a_load_ordered_before_the_change_fails(engine):
    """The scheduler does not know yet: its order names a donor that is gone."""
    cold_tokens = engine.cold(TARGET).tokens
    engine.worker_connector.weights_changed("a test")
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] != "materialised"
    assert answer.semblend["detail"].endswith("the weights changed")
    assert answer.tokens == cold_tokens  # they did not really
    again = engine.run(TARGET, salt=None)
    assert again.semblend["reused_tokens"] == 0


def test_a_capture_under_way_is_thrown_away(engine):
    reads = threading.Event()
    goes_on = threading.Event()
    read = CaptureThread._read

    def slow(self, *arguments):
        reads.set()
        assert goes_on.wait(20)
        return read(self, *arguments)

    other = random_tokens(300, seed=216)
    with patch.object(CaptureThread, "_read", slow):
        engine.llm.enqueue(
            [{"prompt_token_ids": other.tolist()}], engine.sampling(max_tokens=3), use_tqdm=False
        )
        engine.llm.llm_engine.step()
        assert reads.wait(20)
        threading.Timer(0.2, goes_on.set).start()
        engine.llm.collective_rpc(change_one_parameter)
        engine.worker_connector.weights_changed("a test")
        assert len(engine.worker.donors) == 0
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.llm.llm_engine.step()
    engine.drain()
    assert len(engine.worker.donors) == 0
    assert not engine.holds(other)
    assert engine.free_blocks() == engine.core.kv_cache_manager.block_pool.num_gpu_blocks - 1


def test_prompts_begun_before_the_change_are_never_donors(engine):
    """Half of its K/V is the old weights'."""
    engine.worker_connector.weights_changed("a test")
    engine.run(DONOR)
    engine.run(TARGET, salt="another")
    assert len(engine.worker.donors) == 0
    assert engine.scheduler.planner.pending == 0


def test_the_worker_class_hears_of_every_method_that_changes_weights():
    """And of none that its platform does not have."""
    import vllm.v1.worker.cpu_worker as cpu
    from vllm.utils.import_utils import resolve_obj_by_qualname

    ours = resolve_obj_by_qualname(WORKER)
    heard = [name for name in CHANGING_METHODS if name in vars(ours)]
    assert heard == [name for name in CHANGING_METHODS if hasattr(cpu.CPUWorker, name)]
    assert {"reload_weights", "update_weights", "finish_weight_update"} <= set(heard)


def test_a_worker_has_no_other_method_that_sounds_like_changing_weights():
    """Read from source, also those of GPUs: a new one is to be looked at."""
    from pathlib import Path

    import vllm

    known = {
        *CHANGING_METHODS,
        "init_weight_transfer_engine",
        "shutdown_weight_transfer_engine",
        "_check_weight_transfer_engine",
        "_weight_checksum_prefix",
        "compute_weight_checksums",
        "supports_draft_weight_updates",
        "_set_draft_weight_update_target",
        "start_draft_weight_update",  # speculative decoding is refused
        "_start_weight_update",
    }
    import ast

    folder = Path(vllm.__file__).parent / "v1" / "worker"
    for file in ("gpu_worker.py", "cpu_worker.py", "worker_base.py"):
        names = {
            node.name
            for node in ast.walk(ast.parse((folder / file).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert {name for name in names if "weight" in name} <= known, file


def test_a_watch_sees_changes_of_values_and_of_places():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, dtype=torch.half))
    watch = WeightWatch(model)
    assert not watch.changed()
    model[1].weight.data[32] += 1.0
    assert watch.changed()
    watch = WeightWatch(model)
    model[0].bias.data = model[0].bias.data.clone()
    assert watch.changed()


def test_a_watch_sees_changes_of_transposed_parameters():
    """As MLA layers keep what they make of their weights."""
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.rand(64, 32).t())
    watch = WeightWatch(model)
    assert not watch.changed()
    model.weight.data[:, 32] += 1.0
    assert watch.changed()


def test_exact_prefixes_with_our_worker_class_are_watched_too(engines):
    engines.close()
    engine = engines.make("llama", mode="exact_prefix")
    try:
        engine.donate(DONOR)
        engine.llm.collective_rpc(change_one_parameter)
        cold = engine.cold(DONOR)
        answer = engine.run(DONOR)
        assert answer.tokens == cold.tokens
        assert answer.semblend["reused_tokens"] == 0
    finally:
        engines.close()
