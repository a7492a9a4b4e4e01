"""Which rates to offer: upwards until the engine cannot keep up, then closer to where it broke."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRule:
    """A geometric sweep of offered rates."""

    start: float
    """The first rate, in requests per second."""
    factor: float = 1.5
    """Each further rate is so many times the last."""
    most: int = 8
    """Rates at most, before refining."""
    refine: int = 1
    """Rates tried between the highest that passed and the lowest that did not."""

    def __post_init__(self) -> None:
        if self.start <= 0 or self.factor <= 1 or self.most < 1 or self.refine < 0:
            raise ValueError(f"expected start > 0, factor > 1, most >= 1, refine >= 0, got {self}")


def sweep(rule: SweepRule, passes: Callable[[float], bool]) -> dict[float, bool]:
    """Offer rates and say which passed, in ascending order.

    `passes` measures a rate. Where the first rate fails, the sweep goes down instead of up. Equal
    answers give equal rates, so a sweep that was stopped is continued by asking again.
    """
    tried: dict[float, bool] = {}

    def offer(rate: float) -> bool:
        rounded = float(f"{rate:.4g}")
        if rounded not in tried:
            tried[rounded] = passes(rounded)
        return tried[rounded]

    up = offer(rule.start)
    for step in range(1, rule.most):
        if offer(rule.start * rule.factor ** (step if up else -step)) != up:
            break
    for _ in range(rule.refine):
        found = highest(tried)
        if found.saturated_at is None or found.rate == 0.0:
            break
        offer(math.sqrt(found.rate * found.saturated_at))
    return dict(sorted(tried.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Highest:
    """The highest rate that holds the objective."""

    rate: float
    """0 if no measured rate held it."""
    saturated_at: float | None
    """The lowest rate that did not; None if every measured rate held it."""


def highest(passed: Mapping[float, bool]) -> Highest:
    """The highest rate below the first that failed: a pass above a failure is luck."""
    held = 0.0
    for rate, ok in sorted(passed.items()):
        if not ok:
            return Highest(rate=held, saturated_at=rate)
        held = rate
    return Highest(rate=held, saturated_at=None)
