"""Holes as virtual sequences, cut into forwards that fit the engine's buffers.

Attention backends plan into buffers with a fixed number of sequences; compiled code,
workspaces and LoRA kernels have a fixed number of tokens. The pieces run in list order. Where
each layer writes its K/V before attention reads it, a hole sees all earlier ones, both in its own
forward and in earlier forwards; elsewhere runs of one prompt need forwards of their own
(`pass_proof` tells which).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from semblend.core.plan import Hole
from semblend.core.tokens import TokenArray
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.scheduler.orders import LoadCommand

BlockTable = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VirtualSequence:
    """Tokens [start, end) of a prompt, to be computed on top of what its blocks hold.

    Attention sees the prompt up to `end`: the last query token is the last of them.
    """

    tokens: TokenArray
    """The whole prompt, int32."""
    start: int
    end: int
    blocks: BlockTable
    """The prompt's blocks, int32 [blocks]; sequences of one prompt share it."""
    shift: int = 0
    """Added to positions: a proof puts a token at a position that no prompt has reached."""
    adapter: LoraAdapter | None = None
    """What the request runs with, if not the base model."""

    def __len__(self) -> int:
        return self.end - self.start

    def cut(self, first: int) -> tuple[VirtualSequence, VirtualSequence]:
        """The first query tokens up to a count, and the others."""
        middle = self.start + first
        return replace(self, end=middle), replace(self, start=middle)


def block_table(block_ids: Sequence[int]) -> BlockTable:
    """A request's blocks in the form passes take; made once for all sequences of one prompt."""
    return np.asarray(block_ids, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """What one forward of a nested pass may hold."""

    sequences: int
    tokens: int
    together: bool = True
    """Whether sequences of one prompt may share a forward."""

    def forwards(self, sequences: Sequence[VirtualSequence]) -> list[list[VirtualSequence]]:
        """The sequences in as many forwards as they need, in the order given.

        Filled from the end, so the last forward is the fullest: a sequence whose last
        tokens are observed stays whole there as far as one forward allows.
        """
        forwards: list[list[VirtualSequence]] = []
        current: list[VirtualSequence] = []
        room = self.tokens
        for sequence in reversed(sequences):
            rest = sequence
            while len(rest):
                if not room or len(current) == self.sequences or self._apart(rest, current):
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

    def _apart(self, sequence: VirtualSequence, others: Sequence[VirtualSequence]) -> bool:
        """Whether a sequence needs another forward than these."""
        return not self.together and any(other.blocks is sequence.blocks for other in others)


def sequences_of(command: LoadCommand, holes: Sequence[Hole]) -> list[VirtualSequence]:
    """Runs of a load's prompt as virtual sequences over the request's own blocks."""
    blocks = block_table(command.block_ids)
    return [
        VirtualSequence(
            tokens=command.tokens,
            start=hole.start,
            end=hole.end,
            blocks=blocks,
            adapter=command.adapter,
        )
        for hole in holes
    ]


def adapter_of(sequences: Sequence[VirtualSequence]) -> LoraAdapter | None:
    """What all sequences of a forward run with.

    Raises
    ------
    ValueError
        If they run with several: one forward computes with one.
    """
    (adapter,) = {sequence.adapter for sequence in sequences}
    return adapter


def in_turn(prompts: Sequence[Sequence[VirtualSequence]]) -> list[VirtualSequence]:
    """The first sequence of every prompt, the second, …: those of one prompt lie far apart."""
    rounds = zip_longest(*prompts)
    return [item for each in rounds for item in each if item is not None]
