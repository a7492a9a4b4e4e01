"""Counters that go to Prometheus's registry of this process as they are counted.

For engines that collect the metrics of all their processes themselves, so that nothing has to be
registered with them.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class PrometheusStats(Stats):
    """Counts what happened; to Prometheus too where somebody reads it."""

    def __init__(
        self,
        prefix: str,
        *,
        plain: Mapping[str, str],
        times: Mapping[str, str],
        mode: str,
        labels: Mapping[str, str],
        export: bool,
    ) -> None:
        """Make the counters.

        Parameters
        ----------
        prefix
            What every metric's name begins with.
        plain, times
            Counters without a label and histograms of durations, and what they show.
        mode
            The mode that runs.
        labels
            Of every metric.
        """
        super().__init__()
        self._prefix = prefix
        self._labels = dict(labels)
        self._metrics = self._make(plain, times) if export else {}
        self._gauges = self._make_gauges(mode) if export else {}

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
                f"{self._prefix}{name}",
                text,
                [*self._labels, *labels],
                multiprocess_mode="mostrecent",
            )

        gauge(MODE, MODE_TEXT, MODE).labels(**self._labels, mode=mode).set(1)
        return {name: gauge(name, text) for name, text in GAUGES.items()}

    def _make(self, plain: Mapping[str, str], times: Mapping[str, str]) -> dict[str, Any]:
        from prometheus_client import Counter, Histogram

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"{self._prefix}{name}", text, [*self._labels, *labels])

        made: dict[str, Any] = {
            name: counter(name, text, label) for name, (text, label) in LABELLED_COUNTERS.items()
        }
        for source in (*TOKEN_SOURCES, REUSABLE):  # a scrape before the first request has them
            made["tokens"].labels(**self._labels, source=source)
        made |= {name: counter(name, text) for name, text in plain.items()}
        for name in plain:
            made[name].labels(**self._labels)
        made |= {
            f"{name}_seconds": Histogram(
                f"{self._prefix}{name}_seconds", text, list(self._labels), buckets=_SECONDS
            )
            for name, text in times.items()
        }
        return made
