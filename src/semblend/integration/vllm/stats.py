"""Exports the counters through vLLM's own statistics and Prometheus hooks.

vLLM itself reports every claimed token as an external cache hit; these counters do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from semblend.integration.counters import LABELLED_COUNTERS, REUSABLE, TOKEN_SOURCES
from semblend.integration.gauges import ADAPTER_GAUGES, MODE, MODE_TEXT
from semblend.integration.stats import PLAIN, SECONDS, TIMES, VALUES, Stats
from semblend.integration.vllm.options import ConnectorOptions


@dataclass
class SemBlendStats(Stats, KVConnectorStats):
    """What happened since vLLM last asked."""

    def aggregate(self, other: KVConnectorStats) -> SemBlendStats:
        return SemBlendStats(data=self.merged(other.data))

    def reduce(self) -> dict[str, int | float]:
        """A few figures for vLLM's periodic log line."""
        return self.figures()


class SemBlendPromMetrics(KVConnectorPromMetrics):
    """The counters in vLLM's /metrics, named like those of other vLLM connectors."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labelled = {
            name: self._counter(f"vllm:semblend_{name}", text, label)
            for name, (text, label) in LABELLED_COUNTERS.items()
        }
        self._counts = {
            name: self._counter(f"vllm:semblend_{name}", text) for name, text in PLAIN.items()
        }
        self._seconds = {
            name: self._histogram_cls(
                name=f"vllm:semblend_{name}_seconds",
                documentation=text,
                buckets=list(SECONDS),
                labelnames=labelnames,
            )
            for name, text in TIMES.items()
        }
        self._values = {
            name: self._histogram_cls(
                name=f"vllm:semblend_{name}",
                documentation=text,
                buckets=list(buckets),
                labelnames=labelnames,
            )
            for name, (text, buckets) in VALUES.items()
        }
        self._mode = self._gauge(MODE, MODE_TEXT, MODE)
        # No values before the scheduler's first report: 0 would say that nothing is certified.
        self._gauges = {name: self._gauge(name, text) for name, text in ADAPTER_GAUGES.items()}
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        mode = ConnectorOptions.from_extra_config(extra).mode
        for engine in per_engine_labelvalues:
            self._mode.labels(*per_engine_labelvalues[engine], mode.value).set(1)
            # So that a scrape before the first request shows them at 0.
            for source in (*TOKEN_SOURCES, REUSABLE):
                self._labelled["tokens"].labels(*per_engine_labelvalues[engine], source)
            for metric in (
                *self._counts.values(),
                *self._seconds.values(),
                *self._values.values(),
            ):
                metric.labels(*per_engine_labelvalues[engine])

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        return self._counter_cls(
            name=name, documentation=text, labelnames=[*self._labelnames, *labels]
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Any:
        return self._gauge_cls(
            name=f"vllm:semblend_{name}",
            documentation=text,
            labelnames=[*self._labelnames, *labels],
            multiprocess_mode="mostrecent",
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one interval's statistics."""
        values = self.per_engine_labelvalues[engine_idx]
        for part, metric in self._labelled.items():
            for label, amount in transfer_stats_data.get(part, {}).items():
                metric.labels(*values, label).inc(amount)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            if name in self._gauges:
                self._gauges[name].labels(*values).set(value)
        for name, amount in transfer_stats_data.get("counts", {}).items():
            if name in self._counts:
                self._counts[name].labels(*values).inc(amount)
        for histograms, part in ((self._seconds, "seconds"), (self._values, "values")):
            for name, observed in transfer_stats_data.get(part, {}).items():
                if name in histograms:
                    histogram = histograms[name].labels(*values)
                    for value in observed:
                        histogram.observe(value)
