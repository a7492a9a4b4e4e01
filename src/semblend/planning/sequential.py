"""A test that may be checked after every sample: is a rate above its bound?

A gambler bets that each observation will exceed the bound. While the bound holds, the gambler's
wealth is a supermartingale, so it ever reaches 1 / alpha with probability at most alpha, however
long one watches (Ville's inequality). If the bound is broken, wealth grows exponentially.
Observations are any values in [0, 1], not only hits and misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from semblend.core.errors import SettingsError

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of the largest safe bet. The gambler spreads wealth over all of them."""


@dataclass(slots=True)
class BettingTest:
    """Watches whether a mean stays at or below `bound`.

    >>> test = BettingTest(bound=0.05)
    >>> any(test.observe(0.0) for _ in range(1000))
    False
    >>> [test.observe(1.0) for _ in range(12)][-1]
    True
    """

    bound: float
    alpha: float = 1e-3
    """Probability of a false alarm over the test's lifetime."""
    stakes: tuple[float, ...] = STAKES
    """Each in (0, 1)."""
    samples: int = 0
    total: float = 0.0
    _logs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._logs = self._logs or [0.0] * len(self.stakes)
        if not 0.0 < self.bound < 1.0:
            raise SettingsError(f"betting test: bound must be in (0, 1), got {self.bound}")
        if not 0.0 < self.alpha < 1.0:
            raise SettingsError(f"betting test: alpha must be in (0, 1), got {self.alpha}")

    def observe(self, value: float) -> bool:
        """Add one observation in [0, 1]. True once the bound is known to be broken."""
        value = min(1.0, max(0.0, value))
        self.samples += 1
        self.total += value
        for index, stake in enumerate(self.stakes):
            # The largest bet that cannot lose everything is 1 / bound.
            self._logs[index] += math.log1p(stake / self.bound * (value - self.bound))
        return self.broken

    @property
    def mean(self) -> float:
        """Mean of the observations so far."""
        return self.total / self.samples if self.samples else 0.0

    @property
    def log_wealth(self) -> float:
        """Logarithm of the gambler's wealth, which starts at 1."""
        top = max(self._logs)
        return top + math.log(sum(math.exp(value - top) for value in self._logs) / len(self.stakes))

    @property
    def broken(self) -> bool:
        """Whether the wealth has reached 1 / alpha."""
        return self.log_wealth >= -math.log(self.alpha)


def samples_to_notice(rate: float, *, bound: float, alpha: float = 1e-3) -> float:
    """About how many observations until hits at `rate` are noticed; endless where they never are.

    Wealth grows by the best stake's mean logarithm an observation, and has to make up for the
    stakes that lose.
    """
    if not bound < rate <= 1.0:
        return math.inf
    growth = max(
        rate * math.log1p(stake / bound * (1 - bound)) + (1 - rate) * math.log1p(-stake)
        for stake in STAKES
    )
    return math.inf if growth <= 0 else math.log(len(STAKES) / alpha) / growth
