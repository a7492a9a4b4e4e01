"""SGLang's K/V pool: copying from donors' slots to a request's own, K re-rotated, and reading."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.transfer import SpanCopy, copy_spans


class KvPool:
    """A plain pool: a list of K and of V buffers, [slots, kv_heads, head_dim] a layer.

    K that does not move is copied bit for bit.
    """

    def __init__(self, runner: Any, table: RotaryTable) -> None:
        """Learn where K/V is.

        Raises
        ------
        UnsupportedModelError
            If layers, or K and V, do not lie alike.
        """
        pool = runner.token_to_kv_pool
        self._runner = runner
        self._layers = tuple(zip(pool.k_buffer, pool.v_buffer, strict=True))
        try:
            self.slots = PagedKv.of_slots(pool.k_buffer, pool.v_buffer)
        except PlanError as error:
            raise UnsupportedModelError(f"K/V pool: {error}") from error
        first: torch.Tensor = pool.k_buffer[0]
        self.device, self.head_dim = first.device, int(first.shape[-1])
        self._table = table.to(self.device)
        self._stream = getattr(runner, "forward_stream", None) if first.is_cuda else None

    @property
    def layer_count(self) -> int:
        """Layers that hold K/V."""
        return len(self._layers)

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """K/V of positions [start, end) on a layer, [2, tokens, kv_heads, head_dim].

        The one block is a row of the slot table.
        """
        table = self._runner.req_to_token_pool.req_to_token
        slots = table[block_ids[0], start:end].to(torch.int64)
        return torch.stack([buffer[slots] for buffer in self._layers[layer]])

    @torch.inference_mode()
    def copy(self, spans: Sequence[SpanCopy], drift: DepthDrift | None = None) -> int:
        """Copy spans of `slots`, shifted to their new depths by `drift`; returns the tokens copied.

        Queued behind the forwards that wrote the donors, on the stream they run on:
        nobody can overwrite a donor's slot between now and the copy.
        """
        with self._on_forward_stream():
            return copy_spans(self.slots, spans, self._table, drift=drift)

    def wait_for_copies(self) -> None:
        """Let the current stream wait for what was queued. Called before K/V is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _on_forward_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)
