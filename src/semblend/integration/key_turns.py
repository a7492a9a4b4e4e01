"""Turning a run of K from where a donor had it to where a request has it."""

from __future__ import annotations

import torch

from semblend.kv.rotary_table import RotaryTable, full_rows, swap_pairs


class KeyTurn:
    """One run of tokens and where it moves: the same turn for the K of every layer.

    K that does not move is handed through bit for bit.
    """

    def __init__(
        self, table: RotaryTable, *, donor_start: int, target_start: int, tokens: int
    ) -> None:
        """Work the rows out once, on the table's device.

        Raises
        ------
        PlanError
            If a position has no row.
        """
        self._table = table
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None
        if donor_start != target_start:
            table.check_positions(0, max(donor_start, target_start) + tokens - 1)
            offsets = torch.arange(tokens, device=table.cos.device)
            cos, sin = table.differences(donor_start + offsets, target_start + offsets)
            self._rows = full_rows(cos[:, None], sin[:, None], table.pairing)

    def __call__(self, keys: torch.Tensor) -> torch.Tensor:
        """A layer's keys [tokens, kv_heads, head_dim], turned in fp32."""
        if self._rows is None:
            return keys
        cos, sin = self._rows  # [tokens, 1, rotary_dim]
        width = self._table.rotary_dim
        rotating = keys[..., :width].float()
        turned = (rotating * cos).addcmul_(swap_pairs(rotating, self._table.pairing), sin)
        if width == keys.shape[-1]:
            return turned.to(keys.dtype)
        return torch.cat((turned.to(keys.dtype), keys[..., width:]), dim=-1)
