"""Exports the counters through vLLM's own statistics and Prometheus hooks.

vLLM itself reports every claimed token as an external cache hit; these counters do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from semblend.integration.gauges import ADAPTER_GAUGES
from semblend.integration.prometheus import AdapterMetrics
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
        self._metrics = AdapterMetrics(
            self,
            plain=PLAIN,
            times={name: (text, SECONDS) for name, text in TIMES.items()},
            values=VALUES,
            gauges=ADAPTER_GAUGES,
        )
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        mode = ConnectorOptions.from_extra_config(extra).mode.value
        for labels in per_engine_labelvalues.values():
            self._metrics.start(labels, mode=mode)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one interval's statistics."""
        self._metrics.observe(transfer_stats_data, self.per_engine_labelvalues[engine_idx])

    def counter(self, name: str, text: str, *labels: str) -> Any:
        return self._counter_cls(**self._described(name, text, *labels))

    def gauge(self, name: str, text: str, *labels: str) -> Any:
        described = self._described(name, text, *labels)
        return self._gauge_cls(**described, multiprocess_mode="mostrecent")

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Any:
        return self._histogram_cls(**self._described(name, text), buckets=list(buckets))

    def _described(self, name: str, text: str, *labels: str) -> dict[str, Any]:
        return {
            "name": f"vllm:semblend_{name}",
            "documentation": text,
            "labelnames": [*self._labelnames, *labels],
        }
