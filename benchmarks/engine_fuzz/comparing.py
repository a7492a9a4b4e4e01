"""Compares greedy answers in arithmetic that rounds.

Greedy answers to the same prompt may differ: other batches round differently, and of two equally
likely tokens either may win. So where an answer leaves its reference, its token must be about as
likely there as the best one, and the rest is compared with a reference that continues from there.
Wrong K/V gives tokens that are far from likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reference run: its tokens and, at each position, the likeliest ones."""

    tokens: tuple[int, ...]
    likely: tuple[dict[int, float], ...]
    """Log-probabilities by token."""
    said: dict[str, Any] = field(default_factory=dict)
    """What was reported about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where an answer leaves its reference."""

    place: int
    got: int
    expected: int
    gap: float
    """How much likelier the reference finds its own token, in nats."""

    def __str__(self) -> str:
        return f"token {self.place} is {self.got}, not {self.expected} ({self.gap:.2f} nats)"


Continue = Callable[[tuple[int, ...]], Answer]
"""The reference after some tokens of an answer."""


@dataclass(slots=True)
class Comparison:
    """Compares answers; records the near ties it accepted."""

    margin: float
    """Nats within which two tokens count as equally likely."""
    near_ties: int = 0
    largest_tie: float = 0.0

    def difference(
        self, answer: tuple[int, ...], reference: Answer, go_on: Continue | None = None
    ) -> Difference | None:
        """Where the answer is wrong, if it is.

        Without `go_on` a near tie cannot be followed, and everything after it counts as right.
        """
        done = 0
        while True:
            found = _first_difference(answer, done, reference)
            if found is None or found.gap > self.margin:
                return found
            self.near_ties += 1
            self.largest_tie = max(self.largest_tie, found.gap)
            done = found.place + 1
            if go_on is None or done == len(answer):
                return None
            reference = go_on(answer[:done])


def _first_difference(answer: tuple[int, ...], done: int, reference: Answer) -> Difference | None:
    """The first position after `done` tokens where an answer differs from its reference."""
    for place, (got, expected) in enumerate(zip(answer[done:], reference.tokens, strict=False)):
        if got != expected:
            likely = reference.likely[place]
            gap = max(likely.values()) - likely.get(got, -math.inf)
            return Difference(place=done + place, got=got, expected=expected, gap=gap)
    return None
