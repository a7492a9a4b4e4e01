"""vLLM's worker, as the shared worker side needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from semblend.core.errors import UnsupportedModelError
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm import rotary, speculation
from semblend.integration.vllm.fleet import replica_of
from semblend.integration.vllm.nested_pass import NestedPass
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.support import layer_refusals, taken_traits
from semblend.integration.worker.donors import DonorRoom
from semblend.integration.worker.host_ranks import HostRanks
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.side import WorkerSetup, WorkerSide
from semblend.kv.layer_rotary import Rotary


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
            folder=_folder(config, options),
        ),
        load_threads=options.load_threads,
        faults=options.settings().faults,
        measures=options.settings().measure_speed,
    )


def _folder(config: Any, options: ConnectorOptions) -> Path | None:
    """A replica's own: a folder belongs to one process."""
    replica = replica_of(config)
    if options.donor_folder is None or not replica:
        return options.donor_folder
    return options.donor_folder / f"replica{replica}"


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
    # In the model's order: caches come group by group.
    cached = {name: layer for name, layer in static.items() if name in kv_caches}
    layers, drafted = speculation.drafter_last(cached, config)
    refusals = layer_refusals(layers.values(), taken_traits(config))
    if refusals:
        raise UnsupportedEngineError(refusals)
    side.attach(
        PagedAccess(
            layers,
            block_size=int(config.cache_config.block_size),
            draft_layers=drafted,
            computed_in=config.model_config.dtype,
        ),
        ranks_of(config),
        table=None if nested else rotary.table_from_config(config, tuple(layers.values())),
    )


def bind(side: WorkerSide, config: Any, runner: Any) -> None:
    """Receive the model from our worker class."""
    model = runner.get_model()

    def passes(access: KvAccess) -> NestedPass:
        if not isinstance(access, PagedAccess):
            raise UnsupportedModelError("the K/V cache is not vLLM's")
        draft = None
        if access.draft_layers:
            own = tuple(access.named_layers)[: -access.draft_layers]
            speculation.check_own_layers(model, set(own))
            draft = speculation.DraftPass(runner)
        return NestedPass(runner, config, access.named_layers, draft=draft)

    def table() -> Rotary:
        layers = side.access.layers if isinstance(side.access, PagedAccess) else ()
        return rotary.table_from_model(model, layers)

    side.bind(model, make_passes=passes, make_table=table)


def ranks_of(config: Any) -> HostRanks:
    """The ranks that share this worker's model."""
    from vllm.distributed.parallel_state import get_tp_group

    alone = int(config.parallel_config.tensor_parallel_size) == 1
    return HostRanks(None if alone else get_tp_group().cpu_group)
