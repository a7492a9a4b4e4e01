"""Judges shadow samples: a sequential test per namespace turns reuse off where it fails.

A sample is a reused request that was also computed cold. Engines and adapters compute the
differences in their own ways and report them here.
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
"""Share of compared tokens whose top token may differ, unless a certificate says otherwise."""
MAX_NAMESPACES = 4096
"""Namespaces watched at once, and namespaces with reuse off. Callers can make any number, with a
cache salt for every conversation.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStats:
    """Results of the samples so far."""

    samples: int = 0
    divergence: float = 0.0
    """Mean KL(cold || warm) per compared token, in nats."""
    disagreement: float = 0.0
    """Mean share of compared tokens whose top token differs."""
    suspended: int = 0
    """Namespaces in which reuse is off."""


class ShadowWatch:
    """Tracks the namespaces in which reuse is turned off. Thread-safe.

    If it runs out of room, it errs on the safe side: it first drops tests in favour of reuse, and
    never a namespace with reuse off. If there are too many of those, reuse is off everywhere.
    """

    def __init__(
        self, *, bound: float = DISAGREEMENT_BOUND, max_namespaces: int = MAX_NAMESPACES
    ) -> None:
        self._bound = bound
        self._max_namespaces = max_namespaces
        self._lock = threading.Lock()
        self._tests: dict[bytes, BettingTest] = {}
        """Least recently sampled first."""
        self._suspended: dict[bytes, str] = {}
        self._everywhere: str | None = None
        """Why reuse is off in all namespaces, or None."""
        self._samples = 0
        self._divergence = 0.0
        self._disagreement = 0.0

    def observe(self, key: bytes, *, divergence: float, disagreement: float) -> str | None:
        """Add one sample of a namespace. Returns the evidence if this sample breaks the bound."""
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
                f"samples; the bound is {self._bound:.1%} (log evidence {test.log_wealth:.1f}, "
                f"last KL {divergence:.3g})"
            )
        self.suspend(key, evidence)
        return evidence

    def suspend(self, key: bytes, evidence: str) -> None:
        """Turn reuse off in a namespace until an operator turns it on again."""
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
        """Why reuse is off in a namespace, or None."""
        with self._lock:
            if key is None:
                return None
            return self._suspended.get(key, self._everywhere)

    def resume(self, key: bytes | None = None) -> int:
        """Turn reuse on again in one namespace, or all. Returns how many had it off.

        If it is off everywhere, it can only be turned on everywhere.
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
        with self._lock:
            count = max(1, self._samples)
            return ShadowStats(
                samples=self._samples,
                divergence=self._divergence / count,
                disagreement=self._disagreement / count,
                suspended=len(self._suspended),
            )

    def _keep(self, key: bytes, test: BettingTest) -> None:
        """Record a test as the latest. Without room, drop the quarter that is least worrying.

        A dropped namespace starts afresh. That makes the watch stricter for one in favour of reuse,
        but would let one against it off.
        """
        if len(self._tests) >= self._max_namespaces:
            quarter = max(1, self._max_namespaces // 4)
            calm = heapq.nsmallest(quarter, self._tests, key=lambda k: self._tests[k].log_wealth)
            for name in calm:
                del self._tests[name]
        self._tests[key] = test
