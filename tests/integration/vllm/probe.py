"""The connector under test, with windows into it: what it planned, ordered and wrote where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from benchmarks.vllm_rewriting import RewritingConnector
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.vllm.metadata import ConnectorMeta


class ProbeConnector(RewritingConnector):
    """Records blocks and orders; lets a test rewrite a load before the workers see it."""

    scheduler: ClassVar[Any] = None
    worker: ClassVar[ProbeConnector | None]

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.blocks: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.hashes: dict[str, list[bytes]] = {}
        self.loads: list[LoadCommand] = []
        self.steps: list[dict[str, int]] = []
        self.cold_shadow_steps: list[tuple[bool, int]] = []
        """Of each step: whether it was idle, and the pieces of samples computed in it."""
        self.rewrite_load: Callable[[LoadCommand], LoadCommand] | None = None
        if role is KVConnectorRole.SCHEDULER:
            ProbeConnector.scheduler = self
        else:
            ProbeConnector.worker = self

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        self.requests[request.request_id] = request

    def build_connector_meta(self, scheduler_output: Any) -> ConnectorMeta:
        meta = super().build_connector_meta(scheduler_output)
        self.steps.append(dict(scheduler_output.num_scheduled_tokens))
        pieces = sum(not order.warm for order in meta.shadows)
        self.cold_shadow_steps.append((meta.idle, pieces))
        for request_id in scheduler_output.num_scheduled_tokens:
            (blocks,) = self._kv_cache_manager.get_block_ids(request_id)
            self.blocks[request_id] = list(blocks)
            self.hashes[request_id] = list(self.requests[request_id].block_hashes)
        if self.rewrite_load is not None:
            meta.loads = [self.rewrite_load(load) for load in meta.loads]
        self.loads += meta.loads
        return meta

    def kv_of(self, request_id: str, start: int, end: int) -> torch.Tensor:
        """K/V of a request's positions, [layers, 2, tokens, kv_heads, head_dim], as numbers."""
        access = ProbeConnector.worker.worker_side.access
        blocks = self.blocks[self.internal(request_id)]
        layers = range(access.layer_count)
        return torch.stack([access.read_layer(layer, blocks, start, end) for layer in layers])

    def internal(self, request_id: str) -> str:
        """The engine's id of a request, which ends in random letters."""
        return next(name for name in self.blocks if name.rpartition("-")[0] == request_id)


class OneRankFails(ProbeConnector):
    """Rank 1 cannot load prompts that begin with this token; rank 0 can."""

    TOKEN = 7

    def bind_model_runner(self, runner: Any) -> None:
        super().bind_model_runner(runner)
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        if get_tensor_model_parallel_rank() != 1:
            return
        loader = self.worker_side.loads._loader
        begin = loader.begin

        def failing(command: LoadCommand) -> Any:
            if command.tokens[0] == self.TOKEN:
                raise RuntimeError("rank 1 was told to fail")
            return begin(command)

        loader.begin = failing


def chopped(load: LoadCommand) -> LoadCommand:
    """The same load with every hole cut into holes of one token."""
    from semblend.core.plan import Hole

    holes = tuple(
        Hole(position, position + 1)
        for hole in load.holes
        for position in range(hole.start, hole.end)
    )
    return replace(load, holes=holes)
