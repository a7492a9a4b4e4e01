"""Virtual sequences as one varlen batch, laid out on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semblend.integration.worker.sequences import VirtualSequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VarlenBatch:
    """The query tokens of all sequences, concatenated, and where each stands and goes."""

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    """Where the tokens' K/V is written."""
    starts: npt.NDArray[np.int32]
    """Where each sequence's tokens begin, and the end; [sequences + 1]."""
    lengths: npt.NDArray[np.int32]
    """Tokens attention sees, [sequences]."""
    tables: npt.NDArray[np.int32]
    """Each prompt's blocks once, [prompts, most blocks]."""
    rows: npt.NDArray[np.int64]
    """Index of each sequence's table."""

    @classmethod
    def of(cls, sequences: Sequence[VirtualSequence], block_size: int) -> VarlenBatch:
        """Lay sequences out; a slot is block * block_size + offset."""
        counts = np.array([len(item) for item in sequences])
        starts = np.concatenate(([0], counts.cumsum())).astype(np.int32)
        # Counted from the prompt's start: an arange with a jump at each sequence.
        jumps = np.array([item.start for item in sequences]) - starts[:-1]
        places = np.arange(starts[-1], dtype=np.int64) + np.repeat(jumps, counts)
        prompts = {id(item.blocks): item.blocks for item in sequences}
        row_of = {key: row for row, key in enumerate(prompts)}
        tables = np.zeros((len(prompts), max(map(len, prompts.values()))), dtype=np.int32)
        for row, blocks in enumerate(prompts.values()):
            tables[row, : len(blocks)] = blocks
        rows = np.array([row_of[id(item.blocks)] for item in sequences])
        block, offset = places // block_size, places % block_size
        return cls(
            tokens=np.concatenate([item.tokens[item.start : item.end] for item in sequences]),
            positions=places + np.repeat([item.shift for item in sequences], counts),
            slots=tables[np.repeat(rows, counts), block].astype(np.int64) * block_size + offset,
            starts=starts,
            lengths=np.array([item.end for item in sequences], dtype=np.int32),
            tables=tables,
            rows=rows,
        )


def following_tokens(sequences: Sequence[VirtualSequence]) -> npt.NDArray[np.int32]:
    """The token after each query token; after the last of all, the last itself."""
    after = (
        item.tokens[np.minimum(np.arange(item.start + 1, item.end + 1), len(item.tokens) - 1)]
        for item in sequences
    )
    return np.concatenate(list(after)).astype(np.int32)


def uploaded(values: npt.NDArray[Any], device: str | torch.device) -> torch.Tensor:
    """Numbers on a device, without waiting for its current work."""
    host = torch.from_numpy(values)
    if torch.device(device).type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
