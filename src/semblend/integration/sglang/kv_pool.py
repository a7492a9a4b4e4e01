"""SGLang's K/V pool: where copies go, and how shared code reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.integration.worker.port import KvLayers
from semblend.kv.paged_kv import PagedKv


class KvPool(KvLayers):
    """A plain pool: a list of K and of V buffers, [slots, kv_heads, head_dim] a layer."""

    def __init__(self, runner: Any) -> None:
        """Learn where K/V is.

        Raises
        ------
        UnsupportedModelError
            If layers, or K and V, do not lie alike.
        """
        pool = runner.token_to_kv_pool
        self._rows = runner.req_to_token_pool
        self._layers = tuple(zip(pool.k_buffer, pool.v_buffer, strict=True))
        self.layer_count = len(self._layers)
        try:
            self.slots = PagedKv.of_slots(pool.k_buffer, pool.v_buffer)
        except PlanError as error:
            raise UnsupportedModelError(f"K/V pool: {error}") from error
        first: torch.Tensor = pool.k_buffer[0]
        self.device = first.device
        self.kv_heads, self.head_dim = map(int, first.shape[-2:])
        self.stream = getattr(runner, "forward_stream", None) if first.is_cuda else None
        """The stream of the engine's forwards, on a GPU."""

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """K/V of positions [start, end) on a layer, [2, tokens, kv_heads, head_dim].

        The one block is a row of the slot table.
        """
        slots = self._rows.req_to_token[block_ids[0], start:end].to(torch.int64)
        return torch.stack([buffer[slots] for buffer in self._layers[layer]])
