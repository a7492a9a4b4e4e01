"""Items of quality workloads, for tests that put them to an engine of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from semblend.quality.items import Item, to_item
from semblend.quality.suite import Cell


def items_of(cells: Sequence[Cell], seed: int, tokenizer: Any) -> Iterator[Item]:
    """All items of the cells."""
    for cell in cells:
        for case in cell.cases(seed):
            yield to_item(case, tokenizer)
