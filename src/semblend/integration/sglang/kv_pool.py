"""Copying inside SGLang's K/V pool: from donors' slots to a request's own, K re-rotated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.faults import FaultPoint, fault_point
from semblend.integration.key_turns import KeyTurn
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.rotary_table import RotaryTable


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
        pool = runner.token_to_kv_pool
        self._keys: list[torch.Tensor] = pool.k_buffer
        self._values: list[torch.Tensor] = pool.v_buffer
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
        with self._on_forward_stream(copies):
            for copy in copies:
                self._copy(copy, drift)
        return sum(copy.tokens for copy in copies)

    def wait_for_copies(self) -> None:
        """Let the current stream wait for what was queued. Called before K/V is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    @fault_point(FaultPoint.COPY, after=True)
    def _copy(self, copy: SlotCopy, drift: DepthDrift | None) -> None:
        turn = KeyTurn(
            self._table,
            donor_start=copy.donor_start,
            target_start=copy.target_start,
            tokens=copy.tokens,
        )
        move = drift and drift.move(
            source_start=copy.donor_start,
            target_start=copy.target_start,
            tokens=copy.tokens,
            rotary=self._table,
        )
        for layer, (keys, values) in enumerate(zip(self._keys, self._values, strict=True)):
            moved, told = turn(keys[copy.source]), values[copy.source]
            if move:
                moved, told = move.keys(layer, moved), move.values(layer, told)
            keys[copy.target] = moved
            values[copy.target] = told

    def _on_forward_stream(self, copies: Sequence[SlotCopy]) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for copy in copies:
            # Made on the scheduler's stream: their memory must outlive the queued reads.
            copy.source.record_stream(self._stream)
            copy.target.record_stream(self._stream)
        return torch.cuda.stream(self._stream)
