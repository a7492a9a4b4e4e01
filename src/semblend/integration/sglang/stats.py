"""Counters in SGLang's own /metrics, named as SGLang names its metrics.

Hole tokens are computed, so they are counted as computed.
"""

from __future__ import annotations

from typing import Any

from semblend.core.ledger import Settlement
from semblend.integration.counters import LABELLED_COUNTERS, tokens_by_source
from semblend.integration.stats import Stats

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_PLAIN = {
    "donors_registered": "Prompts computed exactly that may be reused from.",
    "donors_skipped": "Prompts not kept because the line of those to be kept was full.",
    "donors_evicted": "Donors forgotten because the tree let go of them.",
    "donors_lost": "Donors that had left the tree when they were to be loaded.",
    "load_failures": "Loads or passes that failed and were computed exactly.",
    "waits": "Admissions put off by one step, for the hole budget or a lost donor.",
}
_TIMES = {
    "lookup": "Time to plan for a prompt, in the scheduler.",
    "load": "Time to find donors, take slots and queue the copies.",
    "nested": "Time to run or queue a step's passes over holes.",
}


class BackendStats(Stats):
    """Counts what happened; to Prometheus too where SGLang serves metrics."""

    def __init__(self, *, export: bool, labels: dict[str, str] | None = None) -> None:
        """Make the counters.

        Parameters
        ----------
        export
            Whether SGLang was started with --enable-metrics. It collects the metrics of
            all its processes from files, so nothing has to be registered with it.
        """
        super().__init__()
        self._labels = labels or {}
        self._metrics: dict[str, Any] = self._make() if export else {}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a plain counter."""
        super().count(name, amount)
        self._add(name, amount)

    def time(self, name: str, seconds: float) -> None:
        """Note one duration; nobody takes lists of them here."""
        metric = self._metrics.get(f"{name}_seconds")
        if metric is not None:
            metric.labels(**self._labels).observe(seconds)

    def settled(self, settlement: Settlement) -> None:
        """Count one request and its prompt tokens by where their K/V came from."""
        super().settled(settlement)
        self._add("requests", 1, outcome=settlement.outcome.value)
        if settlement.reason is not None:
            self._add("declines", 1, reason=settlement.reason.value)
        for source, amount in tokens_by_source(settlement).items():
            self._add("tokens", amount, source=source)

    def _add(self, name: str, amount: int, **labels: str) -> None:
        metric = self._metrics.get(name)
        if metric is not None and amount:
            metric.labels(**self._labels, **labels).inc(amount)

    def _make(self) -> dict[str, Any]:
        from prometheus_client import Counter, Histogram

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"sglang:semblend_{name}", text, [*self._labels, *labels])

        made: dict[str, Any] = {
            name: counter(name, text, label) for name, (text, label) in LABELLED_COUNTERS.items()
        }
        made |= {name: counter(name, text) for name, text in _PLAIN.items()}
        made |= {
            f"{name}_seconds": Histogram(
                f"sglang:semblend_{name}_seconds", text, list(self._labels), buckets=_SECONDS
            )
            for name, text in _TIMES.items()
        }
        return made
