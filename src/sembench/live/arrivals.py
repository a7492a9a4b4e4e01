"""When load requests are sent: at random, at a fixed rate, or one after another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sembench.errors import UsageError


class ArrivalKind(StrEnum):
    POISSON = "poisson"
    """Independent users: gaps are exponential with mean 1/rate."""
    CONSTANT = "constant"
    """One request every 1/rate seconds."""
    CLOSED = "closed"
    """`concurrency` users, each sending as soon as its last answer is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process. Same seed, same schedule."""

    kind: ArrivalKind
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind is not ArrivalKind.CLOSED and not (self.rate and self.rate > 0):
            raise UsageError(
                f"--rate: {self.kind} arrivals need a rate above 0 requests per second"
            )

    def offsets(self) -> Iterator[float]:
        """Yield when requests are due, in seconds after the start. Closed: all at once."""
        if self.kind is ArrivalKind.CLOSED or self.rate is None:
            yield from itertools.repeat(0.0)
            return
        generator = random.Random(self.seed)
        at = 0.0
        while True:
            yield at
            gap = 1.0 / self.rate
            at += generator.expovariate(self.rate) if self.kind is ArrivalKind.POISSON else gap
