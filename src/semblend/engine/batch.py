"""What one forward pass computes: virtual sequences over their requests' pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool

MAX_RUNS = 8
"""Most runs of pages to read in place; a more fragmented table is gathered first. A call over a
short run takes about 20 microseconds whatever its size, a gather one pass over memory.
"""

LayerHook = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Called in each layer once K/V is written: (layer, query [rows, query_heads, head_dim],
key and value [rows, kv_heads, head_dim]). Policies that inspect layers use it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRun:
    """Tokens [start, start + len(tokens)) of one request to compute: a hole or a tail.

    When the pass runs, every position before `start` must be in place: exact, copied, or part of an
    earlier run of the same pass.
    """

    tokens: TokenArray
    start: int
    table: PageTable
    logit_rows: int = 0
    """How many of the last tokens need logits."""

    @property
    def end(self) -> int:
        """First position after the run."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSequence:
    """One virtual sequence, whose queries are rows [row, row + length) of the batch.

    They see the keys of `past` (runs of slots, or gathered slots) and, if there are several rows,
    their own rows causally. A single row needs no mask, because its own slot is the last of its
    past.
    """

    row: int
    length: int
    past: tuple[tuple[int, int], ...]
    gather: torch.Tensor | None = None

    @property
    def seen(self) -> int:
        """Tokens that the last query sees, itself included, where no window hides any."""
        before = sum(length for _, length in self.past)
        return before if self.length == 1 else before + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """The context of one forward pass, passed through the model to every attention layer."""

    pool: PagedPool
    sequences: tuple[BatchSequence, ...]
    writes: tuple[tuple[int, int, int], ...]
    """(row, slot, length): where the rows' K/V goes. All of it is written before any is read."""
    input_ids: torch.Tensor
    """[1, rows]"""
    positions: torch.Tensor
    """[1, rows]"""
    logit_rows: torch.Tensor
    """[wanted]: rows that need logits, in the order of their runs."""
    hook: LayerHook | None = None


def build_batch(
    pool: PagedPool, runs: Sequence[ComputeRun], *, hook: LayerHook | None = None
) -> SequenceBatch:
    """Lay out `runs` as the virtual sequences of one pass.

    Runs of one request must be in position order, because later ones read what earlier ones write.
    """
    device = pool.data.device
    # A GPU gathers faster than it launches, so only an unfragmented table is read in place there.
    most_runs = MAX_RUNS if device.type == "cpu" else 1
    sequences: list[BatchSequence] = []
    writes: list[tuple[int, int, int]] = []
    logit_rows: list[int] = []
    row = 0
    for run in runs:
        visible = run.end if len(run.tokens) == 1 else run.start
        past = run.table.runs(0, visible)
        gather = None
        if len(past) > most_runs:
            gather = torch.from_numpy(run.table.slots(0, visible)).to(device)
        sequences.append(BatchSequence(row=row, length=len(run.tokens), past=past, gather=gather))
        offset = row
        for slot, length in run.table.runs(run.start, run.end):
            writes.append((offset, slot, length))
            offset += length
        row += len(run.tokens)
        logit_rows.extend(range(row - run.logit_rows, row))
    tokens = np.concatenate([run.tokens for run in runs]).astype(np.int64)
    positions = np.concatenate([np.arange(run.start, run.end, dtype=np.int64) for run in runs])
    return SequenceBatch(
        pool=pool,
        sequences=tuple(sequences),
        writes=tuple(writes),
        input_ids=torch.from_numpy(tokens)[None].to(device),
        positions=torch.from_numpy(positions)[None].to(device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        hook=hook,
    )
