"""How long this engine's own prefill takes, learned from the prompts it computed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from semblend.planning.cost import CostModel

_REMEMBERED = 32


class PrefillClock:
    """Seconds for one unit of the cost model. Batches and chunks make single prompts slow, so
    the fastest of the last prompts counts: what is fetched must beat that."""

    def __init__(self, cost: CostModel, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cost = cost
        self._clock = clock
        self._started: dict[str, tuple[float, int]] = {}
        self._finishing: list[tuple[str, int]] = []
        self._measured: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def cost(self) -> CostModel:
        """The model whose units are timed; setting another forgets the times."""
        return self._cost

    @cost.setter
    def cost(self, cost: CostModel) -> None:
        self._cost = cost
        self._measured.clear()

    @property
    def seconds_per_unit(self) -> float | None:
        """None until the first prompt has been computed."""
        return min(self._measured, default=None)

    def started(self, request_id: str, computed_tokens: int) -> None:
        """A request was admitted with this many tokens present; all others are to be computed."""
        self._started[request_id] = (self._clock(), computed_tokens)

    def finishes(self, request_id: str, prompt_tokens: int) -> None:
        """The step being built computes a prompt's last tokens."""
        if request_id in self._started:
            self._finishing.append((request_id, prompt_tokens))

    def step_done(self) -> None:
        """The workers have answered."""
        for request_id, size in self._finishing:
            begun = self._started.pop(request_id, None)
            if begun is not None:
                units = self._cost.compute(begun[1], size)
                if units > 0:
                    self._measured.append((self._clock() - begun[0]) / units)
        self._finishing.clear()

    def forget(self, request_id: str) -> None:
        """A request ended, or was preempted, before its prompt was computed."""
        self._started.pop(request_id, None)
