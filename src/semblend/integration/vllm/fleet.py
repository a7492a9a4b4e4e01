"""A vLLM engine as a member of a fleet."""

from __future__ import annotations

from functools import partial
from typing import Any

from semblend.integration.fleet_part import FleetPart
from semblend.integration.vllm.options import ConnectorOptions


def fleet_part(config: Any, options: ConnectorOptions) -> FleetPart:
    """The part of an engine with this VllmConfig."""
    return FleetPart(
        options.settings(),
        loads=options.mode.loads,
        dp_rank=replica_of(config),
        kv_bytes_per_token=partial(kv_bytes_per_token, config),
    )


def replica_of(config: Any) -> int:
    """Which of several data-parallel replicas this is; 0 where there is one.

    Replicas of a dense model are engines of their own, and vLLM tells each that it is the only
    one. They share what their machine has: folders, and a name in the fleet.
    """
    parallel = config.parallel_config
    return int(getattr(parallel, "data_parallel_index", None) or parallel.data_parallel_rank or 0)


def kv_bytes_per_token(config: Any) -> int:
    """Bytes of one token's K and V over all layers and ranks of a VllmConfig."""
    model = config.model_config
    layers = int(model.get_num_layers(config.parallel_config))
    heads, width = int(model.get_total_num_kv_heads()), int(model.get_head_size())
    parts = 1 if model.use_mla else 2
    return layers * parts * heads * width * int(model.dtype.itemsize)
