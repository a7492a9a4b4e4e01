"""Copying inside SGLang's K/V pool: from donors' slots to a request's own, K re-rotated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from semblend.core.errors import PlanError, UnsupportedModelError
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.transfer import SpanCopy, copy_spans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotCopy:
    """A run of consecutive tokens, from donor slots to target slots."""

    source: torch.Tensor
    """int64 [tokens]: slots read."""
    target: torch.Tensor
    """int64 [tokens]: slots written."""
    donor_start: int
    """Position of the first token in the donor."""
    target_start: int
    """Position of the first token in the request."""

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return int(self.source.numel())


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
        self._keys: list[torch.Tensor] = pool.k_buffer
        try:
            self._paged = PagedKv.of_slots(pool.k_buffer, pool.v_buffer)
        except PlanError as error:
            raise UnsupportedModelError(f"K/V pool: {error}") from error
        self._device: torch.device = self._keys[0].device
        self._table = table.to(self._device)
        self._stream = getattr(runner, "forward_stream", None) if self._keys[0].is_cuda else None

    @property
    def device(self) -> torch.device:
        """Where K/V is."""
        return self._device

    @property
    def layers(self) -> int:
        """Layers that hold K/V."""
        return len(self._keys)

    def keys(self, layer: int) -> torch.Tensor:
        """A layer's keys, [slots, kv_heads, head_dim]."""
        return self._keys[layer]

    @torch.inference_mode()
    def copy(self, copies: Sequence[SlotCopy], drift: DepthDrift | None = None) -> int:
        """Copy every run, shifted to its new depth by `drift`; returns the tokens copied.

        Queued behind the forwards that wrote the donors, on the stream they run on:
        nobody can overwrite a donor's slot between now and the copy.
        """
        if not copies:
            return 0
        spans = self._spans(copies)
        with self._on_forward_stream():
            return copy_spans(self._paged, spans, self._table, drift=drift)

    def wait_for_copies(self) -> None:
        """Let the current stream wait for what was queued. Called before K/V is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _spans(self, copies: Sequence[SlotCopy]) -> list[SpanCopy]:
        """The copies with their slots on the host, all brought at once."""
        slots = torch.cat([part for copy in copies for part in (copy.source, copy.target)])
        edges = np.cumsum([copy.tokens for copy in copies for _ in range(2)])
        parts = iter(np.split(slots.cpu().numpy(), edges[:-1]))
        return [
            SpanCopy(
                source=self._paged,
                source_slots=next(parts),
                target_slots=next(parts),
                source_start=copy.donor_start,
                target_start=copy.target_start,
            )
            for copy in copies
        ]

    def _on_forward_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)
