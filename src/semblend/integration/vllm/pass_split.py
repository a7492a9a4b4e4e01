"""Cutting a nested pass into forwards that fit what the engine has room for.

Attention backends plan into buffers made for so many sequences, and vLLM's compiled code,
workspaces and LoRA kernels are made for so many tokens. The pieces are run in the order of the
list: as each layer writes its K/V before attention reads, a hole sees all earlier ones, those of
its own forward and those of the forwards before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSequence:
    """Tokens to compute on top of what a block table holds."""

    tokens: torch.Tensor
    """int32 [query_tokens]."""
    positions: torch.Tensor
    """int64 [query_tokens]."""
    slots: torch.Tensor
    """int64 [query_tokens]: where their K/V is written."""
    block_ids: Sequence[int]
    length: int
    """Tokens attention sees: the last query token is the last of them."""

    def __len__(self) -> int:
        return int(self.tokens.numel())

    def cut(self, first: int) -> tuple[VirtualSequence, VirtualSequence]:
        """The first so many query tokens, and the others."""
        head, tail = slice(None, first), slice(first, None)
        return (
            replace(
                self,
                tokens=self.tokens[head],
                positions=self.positions[head],
                slots=self.slots[head],
                length=self.length - (len(self) - first),
            ),
            replace(
                self,
                tokens=self.tokens[tail],
                positions=self.positions[tail],
                slots=self.slots[tail],
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """What one forward of a nested pass may hold."""

    sequences: int
    tokens: int

    @classmethod
    def of(cls, builder: Any, scheduler_config: Any) -> PassLimits:
        """What an attention metadata builder and the engine's buffers have room for."""
        return cls(
            sequences=_most_sequences(builder, scheduler_config),
            tokens=int(scheduler_config.max_num_batched_tokens),
        )

    def forwards(self, sequences: Sequence[VirtualSequence]) -> list[list[VirtualSequence]]:
        """The sequences in as many forwards as they need, in the order they came in.

        Filled from the end, so that the last forward is the fullest: a sequence whose last
        tokens somebody watches stays together there as far as one forward goes.
        """
        forwards: list[list[VirtualSequence]] = []
        current: list[VirtualSequence] = []
        room = self.tokens
        for sequence in reversed(sequences):
            rest = sequence
            while len(rest):
                if not room or len(current) == self.sequences:
                    forwards.append(current[::-1])
                    current, room = [], self.tokens
                piece = rest
                if len(rest) > room:
                    rest, piece = rest.cut(len(rest) - room)
                current.append(piece)
                room -= len(piece)
                if piece is rest:
                    break
        if current:
            forwards.append(current[::-1])
        return forwards[::-1]


def _most_sequences(builder: Any, scheduler_config: Any) -> int:
    planned = getattr(builder, "scheduler_metadata", None)
    if isinstance(planned, torch.Tensor):
        # FlashAttention 3: a counter, and four numbers a sequence, sequences rounded up to four.
        return max(1, (int(planned.numel()) - 1) // 16 * 4)
    return int(scheduler_config.max_num_seqs)
