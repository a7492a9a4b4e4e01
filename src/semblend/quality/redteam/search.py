"""The search: draw, ask, learn and shrink finds until time or items run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from semblend.quality.measure import states
from semblend.quality.redteam.attempts import Attempt, attempt_of
from semblend.quality.redteam.bandit import Bandit
from semblend.quality.redteam.engines import RedTeamEngine
from semblend.quality.redteam.grammar import Structure
from semblend.quality.redteam.shrinking import shrink
from semblend.quality.redteam.writing import write

MOST_SHRUNK = 12
"""Finds that are shrunk. Each costs a dozen items or more."""
SEED_STEP = 1_000_003
"""Seed distance between items, so that no two show the same words."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search with one engine."""

    engine: RedTeamEngine
    seed: int
    known: Sequence[Structure] = ()
    """Structures that broke a policy before. The search also explores around them."""
    attempts: list[Attempt] = field(default_factory=list)
    _bandit: Bandit = field(init=False)

    def __post_init__(self) -> None:
        self._bandit = Bandit(self.seed, self.known)
        for attempt in self.attempts:
            self._bandit.learn(attempt.structure, attempt.alarm, counts=attempt.counts)

    @property
    def counted(self) -> int:
        """Valid items so far."""
        return sum(attempt.counts for attempt in self.attempts)

    def run(
        self,
        *,
        seconds: float | None = None,
        items: int | None = None,
        tries: int | None = None,
        tell: Callable[[Attempt], None] = lambda attempt: None,
    ) -> None:
        """Continue until `seconds` have passed, `items` counted or `tries` were made."""
        until = None if seconds is None else time.monotonic() + seconds
        while (
            (until is None or time.monotonic() < until)
            and (items is None or self.counted < items)
            and (tries is None or len(self.attempts) < tries)
        ):
            left = self.engine.batch if tries is None else tries - len(self.attempts)
            for attempt in self.step(min(self.engine.batch, left)):
                tell(attempt)

    def step(self, count: int = 1) -> list[Attempt]:
        """Try some structures, all at once."""
        first = self.seed * SEED_STEP + len(self.attempts)
        asked = [(self._bandit.draw(), first + at) for at in range(count)]
        attempts: list[Attempt] = []
        for attempt in self._ask(asked):
            if attempt.lost and sum(one.lost for one in self.attempts) < MOST_SHRUNK:
                attempt = replace(attempt, shrunk=self._shrunk(attempt))
            self.attempts.append(attempt)
            attempts.append(attempt)
            self._bandit.learn(attempt.structure, attempt.alarm, counts=attempt.counts)
        return attempts

    def _ask(self, asked: Sequence[tuple[Structure, int]]) -> list[Attempt]:
        found = self.engine.answers([write(structure, seed) for structure, seed in asked])
        return [
            self._traced(attempt_of(structure, seed, answered))
            for (structure, seed), answered in zip(asked, found, strict=True)
        ]

    def _traced(self, attempt: Attempt) -> Attempt:
        """Tell a leak from an answer that merely wavered to the other value in the target."""
        if not attempt.leaked:
            return attempt
        case = write(attempt.structure, attempt.seed, neutral=True)
        (answered,) = self.engine.answers([case])
        if answered is None or not states(answered.warm, case.leaked):
            return attempt
        return replace(attempt, leaked=False, unprompted=True)

    def _shrunk(self, attempt: Attempt) -> Structure:
        def breaks(structure: Structure) -> bool:
            (again,) = self._ask([(structure, attempt.seed)])
            return again.leaked if attempt.leaked else again.lost

        return shrink(attempt.structure, breaks)
