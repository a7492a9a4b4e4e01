"""Data parallelism: replicas of a dense model are engines of their own; pipelines are refused."""

from __future__ import annotations

import copy

import pytest
from vllm.engine.arg_utils import EngineArgs

from semblend.integration.vllm.fleet import replica_of
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.support import engine_refusals
from semblend.integration.vllm.worker_port import worker_setup
from tests.integration.models import folder_of
from tests.integration.vllm.engines import WORKER, transfer_config

OPTIONS = ConnectorOptions(mode="segmented_experimental")


@pytest.fixture(scope="module")
def config():
    return EngineArgs(
        model=folder_of("llama"),
        skip_tokenizer_init=True,
        max_model_len=512,
        worker_cls=WORKER,
        kv_transfer_config=transfer_config(),
    ).create_engine_config()


def replica(config, number, *, independent=True):
    """What vLLM tells one of two data-parallel ranks, as its engine process does."""
    told = copy.deepcopy(config)
    told.parallel_config.data_parallel_size = 2
    told.parallel_config.data_parallel_rank = number
    told.parallel_config.data_parallel_index = number
    if independent:
        told.parallel_config.reconfigure_for_independent_dp_rank()
    return told


def test_replicas_of_a_dense_model_load_each_from_its_own_donors(config, tmp_path):
    options = OPTIONS.model_copy(update={"donor_folder": tmp_path, "disk_donor_bytes": 1 << 20})
    told = [replica(config, number) for number in (0, 1)]
    assert [engine_refusals(each, options) for each in told] == [[], []]
    assert [replica_of(each) for each in told] == [0, 1], "one worker's name in a fleet is two"
    folders = [worker_setup(each, options).room.folder for each in told]
    assert folders == [tmp_path, tmp_path / "replica1"]


def test_ranks_that_step_together_are_refused_by_name(config):
    (refusal,) = engine_refusals(replica(config, 1, independent=False), OPTIONS)
    assert "data parallelism with experts" in str(refusal)
    assert "docs/vllm.md" in str(refusal)


def test_a_pipeline_is_refused_by_name(config):
    told = copy.deepcopy(config)
    told.parallel_config.pipeline_parallel_size = 2
    (refusal,) = engine_refusals(told, OPTIONS)
    assert str(refusal).startswith("pipeline parallelism (")
    assert "docs/vllm.md" in str(refusal)
