"""How much of a step goes into plans: a long queue is asked for at every step.

A miss takes part of the engine's step, so the engine itself limits how many are looked at. A
hit takes nothing of it: every waiting prompt is asked for, and whoever decodes waits for all
of their plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEP_SHARE = 0.05
"""Part of a long step that plans may take as well: steps that compute long prompts are few,
and hits wait for the next one. Also the part of all time that better plans may take."""
MOST_SECONDS = 0.02


class PlanRation:
    """Owns the time that the step being scheduled has left for plans.

    - A prompt without a plan gets one while the ration lasts. After that it is asked for again
      in the next step, but only in a step that loads something: what waits behind a load is no
      later for having its own plan made after it.
    - A plan made for other donors, all of whose own are still there, serves as it is. Nobody
      waits for a better one, so such plans are made anew in `STEP_SHARE` of the time that
      passes, the front of the queue first. What is left of it is saved, up to one ration: the
      first donor in a while reaches the front at once. Where the step before left a prompt
      without a plan, those come first.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._least = self._seconds = seconds
        self._clock = clock
        self._began: float | None = None
        self._spent = self._latest = 0.0
        self._loads = False
        self._behind = self._refused = False
        self._saved, self._saved_at = seconds, clock()

    def next_step(self) -> None:
        """A step was scheduled: the next one has the whole ration."""
        self._spent, self._loads = 0.0, False
        self._behind, self._refused = self._refused, False
        self._began = self._clock()

    def step_done(self) -> None:
        """The engine has run a step; the next one is taken to be as long."""
        if self._began is None:
            return
        share = min(MOST_SECONDS, STEP_SHARE * (self._clock() - self._began))
        self._seconds, self._began = max(self._least, share), None

    def claimed(self) -> None:
        """The step loads something."""
        self._loads = True

    @property
    def renews(self) -> bool:
        """Whether a plan that would serve may be made anew."""
        if self._behind or not self._has_room:
            return False
        now = self._clock()
        self._saved += STEP_SHARE * (now - self._saved_at)
        self._saved, self._saved_at = min(self._least, self._saved), now
        return self._saved > 0

    def asks(self) -> bool:
        """Whether a plan is made for a prompt that has none; if not, it comes first next time."""
        made = self._has_room or not self._loads
        self._refused = self._refused or not made
        return made

    @contextmanager
    def spending(self, *, renews: bool = False) -> Iterator[None]:
        """A plan is being made; `renews`: although there is one that would serve."""
        started = self._clock()
        try:
            yield
        finally:
            self._latest = self._clock() - started
            self._spent += self._latest
            if renews:
                self._saved -= self._latest

    @property
    def _has_room(self) -> bool:
        """Whether one more plan like the latest fits; the first of a step always does."""
        return not self._spent or self._spent + self._latest <= self._seconds
