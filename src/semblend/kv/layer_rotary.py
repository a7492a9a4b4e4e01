"""Rows of models whose layers rotate differently, such as Gemma 3 with local and global layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_table import RotaryTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRotary:
    """One table per kind of layer."""

    tables: tuple[RotaryTable, ...]
    of_layer: tuple[int, ...]
    """Each layer's table, as an index into `tables`."""

    def __post_init__(self) -> None:
        if not self.of_layer or set(self.of_layer) != set(range(len(self.tables))):
            raise UnsupportedRotaryError(
                f"layer rotary: expected every one of {len(self.tables)} tables to have a layer, "
                f"got {self.of_layer}"
            )

    @property
    def positions(self) -> int:
        """Positions that all layers have rows for."""
        return min(table.positions for table in self.tables)

    @property
    def device(self) -> torch.device:
        return self.tables[0].device

    def to(self, device: torch.device | str) -> LayerRotary:
        return replace(self, tables=tuple(table.to(device) for table in self.tables))

    def check_positions(self, lowest: int, highest: int) -> None:
        """Refuse positions that a layer has no row for.

        Raises
        ------
        PlanError
            Naming the position and the number of rows.
        """
        for table in self.tables:
            table.check_positions(lowest, highest)

    def check_width(self, head_dim: int) -> None:
        """Refuse heads that a layer's rows do not fit.

        Raises
        ------
        UnsupportedRotaryError
            Naming both widths.
        """
        for table in self.tables:
            table.check_width(head_dim)

    def runs(self, layers: range) -> Iterator[tuple[range, RotaryTable]]:
        """Neighbouring layers that rotate alike, as runs."""
        for kind, run in groupby(layers, key=self.of_layer.__getitem__):
            alike = list(run)
            yield range(alike[0], alike[-1] + 1), self.tables[kind]

    def rerotate(
        self,
        keys: torch.Tensor,
        source_positions: torch.Tensor,
        target_positions: torch.Tensor,
    ) -> torch.Tensor:
        """Move K of all layers, [layers, ..., tokens, heads, head_dim], to its new position.

        A new tensor of the same shape and type, as from `RotaryTable.rerotate`.
        """
        if len(keys) != len(self.of_layer):
            raise UnsupportedRotaryError(
                f"layer rotary: rows of {len(self.of_layer)} layers, K of {len(keys)}"
            )
        return torch.cat(
            [
                table.rerotate(keys[run.start : run.stop], source_positions, target_positions)
                for run, table in self.runs(range(len(keys)))
            ]
        )


Rotary = RotaryTable | LayerRotary
"""What K is moved with."""
