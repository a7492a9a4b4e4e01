"""Judging shadow samples: a sequential test for each namespace, and reuse off where it is lost.

A sample is a reused request that was also computed cold. What differs between the two is
watched by engines and adapters alike; how they compute it is their own affair.
"""

from __future__ import annotations

import heapq
import logging
import threading
from dataclasses import dataclass

from semblend.planning.sequential import BettingTest

logger = logging.getLogger("semblend.shadow")

COMPARED_TOKENS = 8
"""First output tokens whose distributions are compared."""
DISAGREEMENT_BOUND = 0.05
"""Share of compared tokens whose best token may differ, where no certificate says otherwise."""
MAX_NAMESPACES = 4096
"""Namespaces watched at a time, and namespaces reuse is off in: callers may make any number,
with a cache salt for every conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStats:
    """What the samples said so far."""

    samples: int = 0
    divergence: float = 0.0
    """Mean KL(cold || warm) a compared token, nats."""
    disagreement: float = 0.0
    """Mean share of compared tokens whose best token differs."""
    suspended: int = 0
    """Namespaces in which reuse is off."""


class ShadowWatch:
    """Owns which namespaces reuse is turned off in. Thread-safe.

    What it forgets for room it forgets in the safe direction: tests that speak for reuse go
    first, and a namespace in which reuse is off never does. Where there are too many of those,
    reuse is off in all.
    """

    def __init__(
        self, *, bound: float = DISAGREEMENT_BOUND, max_namespaces: int = MAX_NAMESPACES
    ) -> None:
        self._bound = bound
        self._max_namespaces = max_namespaces
        self._lock = threading.Lock()
        self._tests: dict[bytes, BettingTest] = {}
        """The least recently sampled first."""
        self._suspended: dict[bytes, str] = {}
        self._everywhere: str | None = None
        """Why reuse is off in all namespaces, if it is."""
        self._samples = 0
        self._divergence = 0.0
        self._disagreement = 0.0

    def observe(self, key: bytes, *, divergence: float, disagreement: float) -> str | None:
        """Take one sample of a namespace; the evidence, if it is the one too many."""
        with self._lock:
            self._samples += 1
            self._divergence += divergence
            self._disagreement += disagreement
            if self._everywhere is not None or key in self._suspended:
                return None
            test = self._tests.pop(key, None) or BettingTest(bound=self._bound)
            if not test.observe(disagreement):
                self._keep(key, test)
                return None
            evidence = (
                f"{test.mean:.1%} of compared tokens differed from cold in {test.samples} shadow "
                f"samples, the bound is {self._bound:.1%} (log evidence {test.log_wealth:.1f}, "
                f"last KL {divergence:.3g})"
            )
        self.suspend(key, evidence)
        return evidence

    def suspend(self, key: bytes, evidence: str) -> None:
        """Turn reuse off in a namespace until somebody turns it on again."""
        with self._lock:
            self._tests.pop(key, None)
            full = len(self._suspended) >= self._max_namespaces and key not in self._suspended
            if full:
                self._everywhere = (
                    f"reuse is off in {len(self._suspended)} namespaces, and so in all; "
                    f"the last one: {evidence}"
                )
            else:
                self._suspended[key] = evidence
        logger.error(
            "reuse is turned off for namespace %s%s: %s",
            key.hex()[:12],
            " and all others" if full else "",
            evidence,
        )

    def objection(self, key: bytes | None) -> str | None:
        """Why reuse is off in a namespace, if it is."""
        with self._lock:
            if key is None:
                return None
            return self._suspended.get(key, self._everywhere)

    def resume(self, key: bytes | None = None) -> int:
        """Turn reuse on again in one namespace, or all; returns in how many it was off.

        Where it is off in all, only all are turned on again.
        """
        with self._lock:
            if key is None:
                self._everywhere = None
            keys = list(self._suspended) if key is None else [key]
            freed = [name for name in keys if self._suspended.pop(name, None) is not None]
        for name in freed:
            logger.warning("an operator turned reuse on again for namespace %s", name.hex()[:12])
        return len(freed)

    def stats(self) -> ShadowStats:
        """A snapshot."""
        with self._lock:
            count = max(1, self._samples)
            return ShadowStats(
                samples=self._samples,
                divergence=self._divergence / count,
                disagreement=self._disagreement / count,
                suspended=len(self._suspended),
            )

    def _keep(self, key: bytes, test: BettingTest) -> None:
        """Note a test as the latest; without room, a quarter that worries least is forgotten.

        A namespace that was forgotten starts anew: a test that spoke for reuse is watched more
        closely then, one that spoke against it would have been let off.
        """
        if len(self._tests) >= self._max_namespaces:
            quarter = max(1, self._max_namespaces // 4)
            calm = heapq.nsmallest(quarter, self._tests, key=lambda k: self._tests[k].log_wealth)
            for name in calm:
                del self._tests[name]
        self._tests[key] = test
