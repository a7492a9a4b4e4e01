"""vLLM's worker, as the shared worker side needs it."""

from __future__ import annotations

from typing import Any

import torch

from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm import rotary
from semblend.integration.vllm.nested_pass import NestedPass
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.rank_agreement import TensorParallelRanks
from semblend.integration.vllm.support import layer_refusals
from semblend.integration.worker.donors import DonorRoom
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.side import WorkerSetup, WorkerSide


def worker_setup(config: Any, options: ConnectorOptions) -> WorkerSetup:
    """What the worker side needs from a VllmConfig."""
    return WorkerSetup(
        loads=options.mode.loads,
        nested=options.nested,
        step_tokens=int(config.scheduler_config.max_num_batched_tokens),
        max_positions=int(config.model_config.max_model_len),
        room=DonorRoom(
            host_bytes=options.host_donor_bytes,
            disk_bytes=options.disk_donor_bytes,
            folder=options.donor_folder,
        ),
        load_threads=options.load_threads,
        faults=options.settings().faults,
    )


def attach(
    side: WorkerSide, config: Any, kv_caches: dict[str, torch.Tensor], *, nested: bool
) -> None:
    """Learn the layout of the K/V cache, which is now allocated.

    Raises
    ------
    UnsupportedEngineError
        Naming everything in the attention layers that was not proven.
    """
    static = config.compilation_config.static_forward_context
    layers = {name: static[name] for name in kv_caches}
    refusals = layer_refusals(layers.values())
    if refusals:
        raise UnsupportedEngineError(refusals)
    side.attach(
        PagedAccess(layers, block_size=int(config.cache_config.block_size)),
        TensorParallelRanks(config),
        place=_tp_place(),
        table=None if nested else rotary.table_from_config(config),
    )


def bind(side: WorkerSide, config: Any, runner: Any) -> None:
    """Receive the model from our worker class."""
    model = runner.get_model()

    def passes(access: KvAccess) -> NestedPass:
        layers = access.layers if isinstance(access, PagedAccess) else ()
        return NestedPass(runner, config, layers)

    side.bind(model, make_passes=passes, make_table=lambda: rotary.table_from_model(model))


def _tp_place() -> tuple[int, int]:
    """This worker's rank, and the number of ranks."""
    from vllm.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    rank = int(get_tensor_model_parallel_rank())
    return rank, int(get_tensor_model_parallel_world_size())
