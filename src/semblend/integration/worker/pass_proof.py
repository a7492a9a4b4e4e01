"""Whether holes of one request may share a pass: tried on the engine itself, at start.

An attention backend that writes a layer's K/V before it reads any computes two holes in one
pass as it does in two. One that attends first lets the second hole read what was in the first
one's slots before. Names say nothing about it (a backend has several paths), so both ways
are run and their K/V is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import torch

from semblend.core.plan import Hole
from semblend.core.tokens import TokenArray
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.port import Runs
from semblend.integration.worker.sequences import BlockTable, PassLimits, VirtualSequence

logger = logging.getLogger("semblend.adapter")

TRIAL_TOKENS = 96
"""How long the prompt is that is tried."""
_HOLE_TOKENS = TRIAL_TOKENS // 3
_CLOSE = 0.05
"""How far a shared pass may be from two passes, of what reading old K/V would make."""
_CLOSE_IN_DEPTH = 0.3
"""The same behind the first layer that looked: depth makes more of rounding."""
_ROUNDING = 1e-2
"""The same, of the K/V itself: kernels add up in another order where a batch is larger."""
_OLD = 4.0
"""What stands in slots that are to be computed: larger than the K/V of any model."""


class PassTrial(Protocol):
    """A prompt of three runs in the engine, of which the outer two are holes."""

    def compute(self, *holes: Hole) -> None:
        """One pass over these."""
        ...

    def spoil(self, *holes: Hole) -> None:
        """Overwrite the K/V of these."""
        ...

    def kv(self, *holes: Hole) -> torch.Tensor:
        """The K/V of these, [layers, ...]."""
        ...


class SlotTrial:
    """The prompt in slots of an engine's pool."""

    def __init__(
        self,
        nested: Runs,
        tokens: TokenArray,
        *,
        blocks: BlockTable,
        slots: torch.Tensor,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Try a pass.

        Parameters
        ----------
        slots
            Where the prompt's K/V is, int64 [tokens].
        layers
            K and V of the pool, [slots, ...] each.
        """
        self._nested = nested
        self._tokens = tokens
        self._blocks = blocks
        self._slots = slots
        self._layers = layers

    def compute(self, *holes: Hole) -> None:
        """One pass over these."""
        tokens, blocks = self._tokens, self._blocks
        self._nested.run(
            [
                VirtualSequence(tokens=tokens, start=hole.start, end=hole.end, blocks=blocks)
                for hole in holes
            ]
        )

    def spoil(self, *holes: Hole) -> None:
        """Overwrite the K/V of these."""
        slots = self._of(holes)
        for layer in self._layers:
            for buffer in layer:
                buffer[slots] = _OLD

    def kv(self, *holes: Hole) -> torch.Tensor:
        """The K/V of these, [layers, 2, ...], on the host."""
        slots = self._of(holes)
        return torch.stack([torch.stack((k[slots], v[slots])) for k, v in self._layers]).cpu()

    def _of(self, holes: tuple[Hole, ...]) -> torch.Tensor:
        return torch.cat([self._slots[hole.start : hole.end] for hole in holes])


def proven_limits(
    limits: PassLimits,
    ranks: MeetingRanks,
    trial: Callable[[PassLimits], AbstractContextManager[PassTrial]],
) -> PassLimits:
    """The limits with whether holes share a pass in this engine; untried, they do not."""
    apart = replace(limits, together=False)
    if limits.sequences < 2 or limits.tokens < TRIAL_TOKENS:
        return apart
    try:
        with (
            torch.inference_mode(),
            ranks.together(),
            trial(replace(limits, together=True)) as prompt,
        ):
            shared = all(ranks.all_true([holes_share_a_pass(prompt)]))
    except Exception:
        logger.warning("SemBlend could not try passes of several holes", exc_info=True)
        return apart
    logger.info("SemBlend computes %s of a request in a pass", "holes" if shared else "one hole")
    return replace(limits, together=shared)


def holes_share_a_pass(trial: PassTrial) -> bool:
    """Whether one pass over two holes leaves what two passes leave."""
    size = _HOLE_TOKENS
    first, second = Hole(0, size), Hole(2 * size, 3 * size)
    trial.compute(Hole(0, 3 * size))

    def after(*passes: tuple[Hole, ...]) -> torch.Tensor:
        trial.spoil(first, second)
        for holes in passes:
            trial.compute(*holes)
        return trial.kv(first, second).double()

    apart = after((first,), (second,))
    together = after((first, second))
    blind = after((second,), (first,))
    close = _CLOSE
    for layer, expected in enumerate(apart):
        rounding = _ROUNDING * float(expected.norm())
        old = float((blind[layer] - expected).norm())
        if float((together[layer] - expected).norm()) > max(close * old, rounding):
            return False
        if old > rounding:  # the first layers' K/V depends on no attention
            close = _CLOSE_IN_DEPTH
    return True
