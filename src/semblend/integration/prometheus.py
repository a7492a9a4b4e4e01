"""What adapters count, as metrics of Prometheus: the same in every engine's /metrics.

:class:`AdapterMetrics` is made of an engine's own classes, for engines that ask for what was
counted. :class:`PrometheusStats` counts into the registry of this process, for engines that collect
the metrics of all their processes themselves: nothing has to be registered with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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

Labels = Sequence[object]
"""Values of the labels that every metric of an engine has."""
Histograms = Mapping[str, tuple[str, Sequence[float]]]
"""By name: what it shows, and its bucket edges."""


class MetricMaker(Protocol):
    """Makes metrics with an engine's own labels; `labels` name further ones behind them."""

    def counter(self, name: str, text: str, *labels: str) -> Any:
        """A counter called `name` behind the engine's prefix."""
        ...

    def gauge(self, name: str, text: str, *labels: str) -> Any:
        """A gauge of one process, which may be started anew: the most recent value counts."""
        ...

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Any:
        """A histogram with these bucket edges."""
        ...


class AdapterMetrics:
    """All metrics of an adapter."""

    def __init__(
        self,
        make: MetricMaker,
        *,
        plain: Mapping[str, str],
        times: Histograms,
        values: Histograms | None = None,
        gauges: Mapping[str, str],
    ) -> None:
        """Make them: counters without a label, durations, other histograms and gauges."""
        self._labelled = {
            name: make.counter(name, text, label)
            for name, (text, label) in LABELLED_COUNTERS.items()
        }
        self._plain = {name: make.counter(name, text) for name, text in plain.items()}
        self._seconds = {
            name: make.histogram(f"{name}_seconds", text, buckets)
            for name, (text, buckets) in times.items()
        }
        self._values = {
            name: make.histogram(name, text, buckets)
            for name, (text, buckets) in (values or {}).items()
        }
        self._mode = make.gauge(MODE, MODE_TEXT, MODE)
        # No values before the first report: 0 would say that nothing is certified.
        self._gauges = {name: make.gauge(name, text) for name, text in gauges.items()}

    def start(self, labels: Labels, *, mode: str) -> None:
        """Show the mode, and at 0 what is counted: a scrape before the first request has it."""
        self._mode.labels(*labels, mode).set(1)
        for source in (*TOKEN_SOURCES, REUSABLE):
            self._labelled["tokens"].labels(*labels, source)
        for metric in (*self._plain.values(), *self._seconds.values(), *self._values.values()):
            metric.labels(*labels)

    def observe(self, data: Mapping[str, Any], labels: Labels) -> None:
        """Add the data of some :class:`~semblend.integration.stats.Stats`."""
        for part, metric in self._labelled.items():
            for label, amount in data.get(part, {}).items():
                metric.labels(*labels, label).inc(amount)
        for name, amount in data.get("counts", {}).items():
            if name in self._plain:
                self._plain[name].labels(*labels).inc(amount)
        for histograms, part in ((self._seconds, "seconds"), (self._values, "values")):
            for name, observed in data.get(part, {}).items():
                if name in histograms:
                    histogram = histograms[name].labels(*labels)
                    for value in observed:
                        histogram.observe(value)
        for name, value in data.get("gauges", {}).items():
            if name in self._gauges:
                self._gauges[name].labels(*labels).set(value)


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
        self._labels = tuple(labels.values())
        self._metrics: AdapterMetrics | None = None
        if export:
            self._metrics = AdapterMetrics(
                _OwnRegistry(prefix, tuple(labels)),
                plain=plain,
                times={name: (text, _SECONDS) for name, text in times.items()},
                gauges=GAUGES,
            )
            self._metrics.start(self._labels, mode=mode)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a plain counter."""
        super().count(name, amount)
        self._show(counts={name: amount})

    def time(self, name: str, seconds: float) -> None:
        """Note one duration; nobody takes lists of them here."""
        self._show(seconds={name: (seconds,)})

    @property
    def wants_gauges(self) -> bool:
        """Whether somebody reads them."""
        return self._metrics is not None

    def gauges(self, values: dict[str, float]) -> None:
        """How things stand, now."""
        self._show(gauges=values)

    def settled(self, settlement: Settlement) -> None:
        """Count one request and its prompt tokens by where their K/V came from."""
        super().settled(settlement)
        amounts = tokens_by_source(settlement).items()
        self._show(
            requests={settlement.outcome.value: 1},
            declines={} if settlement.reason is None else {settlement.reason.value: 1},
            tokens={source: amount for source, amount in amounts if amount},
        )

    def _show(self, **data: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.observe(data, self._labels)


class _OwnRegistry:
    """Metrics of this process, by Prometheus's own classes."""

    def __init__(self, prefix: str, labels: tuple[str, ...]) -> None:
        self._prefix = prefix
        self._labels = labels

    def counter(self, name: str, text: str, *labels: str) -> Any:
        from prometheus_client import Counter

        return Counter(f"{self._prefix}{name}", text, [*self._labels, *labels])

    def gauge(self, name: str, text: str, *labels: str) -> Any:
        from prometheus_client import Gauge

        names = [*self._labels, *labels]
        return Gauge(f"{self._prefix}{name}", text, names, multiprocess_mode="mostrecent")

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Any:
        from prometheus_client import Histogram

        return Histogram(f"{self._prefix}{name}", text, list(self._labels), buckets=buckets)
