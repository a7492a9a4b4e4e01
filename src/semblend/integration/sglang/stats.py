"""Counters in SGLang's own /metrics, named as SGLang names its metrics.

Hole tokens are computed, so they are counted as computed.
"""

from __future__ import annotations

from typing import Any

from semblend.core.ledger import Settlement
from semblend.integration.counters import (
    LABELLED_COUNTERS,
    REUSABLE,
    TOKEN_SOURCES,
    tokens_by_source,
)
from semblend.integration.gauges import GAUGES, MODE, MODE_TEXT
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

    def __init__(
        self, *, export: bool, labels: dict[str, str] | None = None, mode: str = "discovery_only"
    ) -> None:
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
        self._gauges: dict[str, Any] = self._make_gauges(mode) if export else {}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a plain counter."""
        super().count(name, amount)
        self._add(name, amount)

    def time(self, name: str, seconds: float) -> None:
        """Note one duration; nobody takes lists of them here."""
        metric = self._metrics.get(f"{name}_seconds")
        if metric is not None:
            metric.labels(**self._labels).observe(seconds)

    @property
    def wants_gauges(self) -> bool:
        """Whether somebody reads them."""
        return bool(self._gauges)

    def gauges(self, values: dict[str, float]) -> None:
        """How things stand, now."""
        for name, value in values.items():
            if name in self._gauges:
                self._gauges[name].labels(**self._labels).set(value)

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

    def _make_gauges(self, mode: str) -> dict[str, Any]:
        from prometheus_client import Gauge

        def gauge(name: str, text: str, *labels: str) -> Any:
            # Of one process: the scheduler's, which may be started anew.
            return Gauge(
                f"sglang:semblend_{name}",
                text,
                [*self._labels, *labels],
                multiprocess_mode="mostrecent",
            )

        gauge(MODE, MODE_TEXT, MODE).labels(**self._labels, mode=mode).set(1)
        return {name: gauge(name, text) for name, text in GAUGES.items()}

    def _make(self) -> dict[str, Any]:
        from prometheus_client import Counter, Histogram

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"sglang:semblend_{name}", text, [*self._labels, *labels])

        made: dict[str, Any] = {
            name: counter(name, text, label) for name, (text, label) in LABELLED_COUNTERS.items()
        }
        for source in (*TOKEN_SOURCES, REUSABLE):  # a scrape before the first request has them
            made["tokens"].labels(**self._labels, source=source)
        made |= {name: counter(name, text) for name, text in _PLAIN.items()}
        for name in _PLAIN:
            made[name].labels(**self._labels)
        made |= {
            f"{name}_seconds": Histogram(
                f"sglang:semblend_{name}_seconds", text, list(self._labels), buckets=_SECONDS
            )
            for name, text in _TIMES.items()
        }
        return made
