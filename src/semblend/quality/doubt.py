"""Going on until there is no doubt: is a share below its limit, or above it?

Two gamblers watch the same items. One bets that the share is below the limit, the other that it is
above. As long as a gambler is wrong, their wealth reaches 1 / alpha with probability alpha at
most, however often one looks (Ville's inequality). So items may go on until one of the two has
won, and a share above the limit is called kept with probability alpha at most.
"""

from __future__ import annotations

import math
from enum import StrEnum

from semblend.core.errors import SettingsError
from semblend.planning.sequential import BettingTest

STAKES = (0.5, 0.75, 0.9, 0.99)
"""Of the gambler who bets on few losses: bold, because losses are to be rare."""


class LimitAnswer(StrEnum):
    """What is known about a limit so far."""

    OPEN = "open"
    KEPT = "kept"
    BROKEN = "broken"


class Doubt:
    """One share of items, against one limit.

    >>> doubt = Doubt(limit=0.05, alpha=0.05)
    >>> [doubt.observe(0.0).value for _ in range(items_at_least(limit=0.05, alpha=0.05))][-1]
    'kept'
    """

    def __init__(self, *, limit: float, alpha: float) -> None:
        """`alpha`: how likely a share above the limit may be called kept, and the reverse."""
        if not 0.0 < limit < 1.0:
            raise SettingsError(f"a limit in (0, 1) expected, got {limit}")
        self.limit = limit
        self.items = 0
        self.losses = 0.0
        self._above = BettingTest(bound=limit, alpha=alpha)
        # A loss below the limit is a success above the rest.
        self._below = BettingTest(bound=1.0 - limit, alpha=alpha, stakes=STAKES)
        self._answer = LimitAnswer.OPEN

    def observe(self, loss: float) -> LimitAnswer:
        """Take one item, a loss in [0, 1]; the first answer stands."""
        self.items += 1
        self.losses += loss
        above, below = self._above.observe(loss), self._below.observe(1.0 - loss)
        if self._answer is LimitAnswer.OPEN and (above or below):
            self._answer = LimitAnswer.BROKEN if above else LimitAnswer.KEPT
        return self._answer

    @property
    def answer(self) -> LimitAnswer:
        """What is known."""
        return self._answer


def items_at_least(*, limit: float, alpha: float) -> int:
    """Items without a single loss until a limit is known to be kept."""
    if not 0.0 < limit < 1.0 or not 0.0 < alpha < 1.0:
        raise SettingsError(f"limit and alpha in (0, 1) expected, got {limit} and {alpha}")
    steps = [math.log1p(stake * limit / (1.0 - limit)) for stake in STAKES]
    low, high = 1, 2
    while _wealth(steps, high) < -math.log(alpha):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _wealth(steps, middle) >= -math.log(alpha):
            high = middle
        else:
            low = middle + 1
    return low


def _wealth(steps: list[float], items: int) -> float:
    top = max(steps) * items
    return top + math.log(sum(math.exp(step * items - top) for step in steps) / len(steps))
