"""Recomputes a share of every span at random places: the baseline to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from semblend.core.errors import SettingsError
from semblend.core.plan import Hole
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy

BLOCK_TOKENS = 32
"""Whole runs, not single tokens: each run re-reads the K/V before it."""


@register_policy("random")
@dataclass(frozen=True, slots=True)
class RandomBlocks(RecomputePolicy):
    """`ratio` of the blocks of 32 tokens, chosen by `seed`: the same plan, the same blocks."""

    grid: ClassVar[tuple[str, ...]] = tuple(f"random({r})" for r in (0.1, 0.2, 0.4))
    ordered: ClassVar[bool] = False

    ratio: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio <= 1.0:
            raise SettingsError(f"random: ratio must be in [0, 1], got {self.ratio}")

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        blocks = [
            Hole(start, min(start + BLOCK_TOKENS, span.target_end))
            for span in request.spans
            for start in range(span.target_start, span.target_end, BLOCK_TOKENS)
        ]
        wanted = round(self.ratio * len(blocks))
        order = np.random.default_rng(self.seed).permutation(len(blocks))
        return [blocks[index] for index in sorted(order[:wanted].tolist())]
