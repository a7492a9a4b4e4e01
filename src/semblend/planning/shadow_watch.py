"""Judging shadow samples: a sequential test for each namespace, and reuse off where it is lost.

A sample is a reused request that was also computed cold. What differs between the two is
watched by engines and adapters alike; how they compute it is their own affair.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from semblend.planning.sequential import BettingTest

logger = logging.getLogger("semblend.shadow")

COMPARED_TOKENS = 8
"""First output tokens whose distributions are compared."""
DISAGREEMENT_BOUND = 0.05
"""Share of compared tokens whose best token may differ, where no certificate says otherwise."""


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
    """Owns which namespaces reuse is turned off in. Thread-safe."""

    def __init__(self, *, bound: float = DISAGREEMENT_BOUND) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._tests: dict[bytes, BettingTest] = {}
        self._suspended: dict[bytes, str] = {}
        self._samples = 0
        self._divergence = 0.0
        self._disagreement = 0.0

    def observe(self, key: bytes, *, divergence: float, disagreement: float) -> str | None:
        """Take one sample of a namespace; the evidence, if it is the one too many."""
        with self._lock:
            self._samples += 1
            self._divergence += divergence
            self._disagreement += disagreement
            if key in self._suspended:
                return None
            test = self._tests.setdefault(key, BettingTest(bound=self._bound))
            if not test.observe(disagreement):
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
            self._suspended[key] = evidence
        logger.error("reuse is turned off for namespace %s: %s", key.hex()[:12], evidence)

    def objection(self, key: bytes | None) -> str | None:
        """Why reuse is off in a namespace, if it is."""
        with self._lock:
            return None if key is None else self._suspended.get(key)

    def resume(self, key: bytes | None = None) -> int:
        """Turn reuse on again in one namespace, or all; returns in how many it was off."""
        with self._lock:
            keys = list(self._suspended) if key is None else [key]
            freed = [name for name in keys if self._suspended.pop(name, None) is not None]
            for name in freed:
                self._tests.pop(name, None)
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
