"""Counters, through vLLM's own statistics and Prometheus hooks.

Hole tokens are computed, so they are counted as computed: vLLM itself reports every
claimed token as an external cache hit, these counters do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from semblend.core.ledger import Settlement
from semblend.core.outcomes import Outcome
from semblend.integration.counters import (
    LABELLED_COUNTERS,
    REUSABLE,
    TOKEN_SOURCES,
    tokens_by_source,
)
from semblend.integration.gauges import GAUGES, MODE, MODE_TEXT
from semblend.integration.vllm.options import ConnectorOptions

_GAUGES = {
    **GAUGES,
    "suspended_namespaces": "Namespaces in which shadow samples turned reuse off.",
    "shadow_waiting": "Shadow samples that are not computed yet.",
}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_PLAIN = {
    "donors_registered": "Prompts kept as donors.",
    "donors_dropped": "Donors that were evicted, lost or not stored.",
    "captures_skipped": "Prompts not kept because the capture queue was full.",
    "capture_bytes": "Bytes of K/V copied for donors, over all ranks.",
    "donors_shared": "Donors that other machines can fetch.",
    "donors_fetched": "Donors fetched from other machines.",
    "fetches_failed": "Donors of other machines that were worth fetching and did not come.",
    "shadow_samples": "Reused requests that were also computed cold.",
    "load_failures": "Loads that failed and were computed exactly.",
    "deferred_steps": "Steps requests waited for blocks being written, or for the hole budget.",
}
_TIMES = {
    "lookup": "Time to plan for a prompt, in the scheduler.",
    "load": "Time to copy and rotate a step's spans, slowest rank.",
    "nested": "Time of a step's pass over holes, slowest rank.",
    "capture": "Time to copy one prompt's K/V, off the request path, slowest rank.",
}
_VALUES = {
    "shadow_divergence": (
        "Mean KL(cold || reused) of a shadow sample's compared tokens, nats.",
        (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    ),
    "shadow_disagreement": (
        "Share of a shadow sample's compared tokens whose best token differs from cold.",
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
    ),
}


@dataclass
class SemBlendStats(KVConnectorStats):
    """What happened since the last time vLLM asked. Plain numbers and lists in `data`."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything counted."""
        parts = ("counts", "requests", "declines", "tokens", "seconds", "values", "gauges")
        self.data = {part: {} for part in parts}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a plain counter."""
        _add(self.data["counts"], name, amount)

    def time(self, name: str, seconds: float) -> None:
        """Note one duration."""
        self.data["seconds"].setdefault(name, []).append(seconds)

    def value(self, name: str, value: float) -> None:
        """Note one figure that is no duration."""
        self.data["values"].setdefault(name, []).append(value)

    def gauges(self, values: dict[str, float]) -> None:
        """How things stand, now."""
        self.data["gauges"] = values

    def settled(self, settlement: Settlement) -> None:
        """Count one request and its prompt tokens by where their K/V came from."""
        _add(self.data["requests"], settlement.outcome.value, 1)
        if settlement.reason is not None:
            _add(self.data["declines"], settlement.reason.value, 1)
        for source, amount in tokens_by_source(settlement).items():
            _add(self.data["tokens"], source, amount)

    def aggregate(self, other: KVConnectorStats) -> SemBlendStats:
        """Both together."""
        merged: dict[str, Any] = {}
        for part in ("counts", "requests", "declines", "tokens"):
            merged[part] = dict(self.data.get(part, {}))
            for name, amount in other.data.get(part, {}).items():
                _add(merged[part], name, amount)
        for part in ("seconds", "values"):
            mine, theirs = self.data.get(part, {}), other.data.get(part, {})
            merged[part] = {
                name: [*mine.get(name, ()), *theirs.get(name, ())] for name in {*mine, *theirs}
            }
        merged["gauges"] = {**self.data.get("gauges", {}), **other.data.get("gauges", {})}
        return SemBlendStats(data=merged)

    def reduce(self) -> dict[str, int | float]:
        """A few figures for vLLM's periodic log line."""
        tokens = self.data["tokens"]
        prompt = sum(tokens.get(source, 0) for source in TOKEN_SOURCES)
        figures: dict[str, int | float] = {
            "SemBlend requests": sum(self.data["requests"].values()),
            "materialised": self.data["requests"].get(Outcome.MATERIALISED.value, 0),
            "reused tokens": tokens.get("reused", 0),
            "reused share": round(tokens.get("reused", 0) / prompt, 4) if prompt else 0.0,
            "reusable share": round(tokens.get(REUSABLE, 0) / prompt, 4) if prompt else 0.0,
        }
        for name, values in sorted(self.data["seconds"].items()):
            if values:
                figures[f"mean {name} ms"] = round(1e3 * sum(values) / len(values), 2)
        return figures

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not any(self.data.values())


class SemBlendPromMetrics(KVConnectorPromMetrics):
    """The counters in vLLM's /metrics, named as vLLM names its connectors' metrics."""

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
            name: self._counter(f"vllm:semblend_{name}", text) for name, text in _PLAIN.items()
        }
        self._seconds = {
            name: self._histogram_cls(
                name=f"vllm:semblend_{name}_seconds",
                documentation=text,
                buckets=list(_SECONDS),
                labelnames=labelnames,
            )
            for name, text in _TIMES.items()
        }
        self._values = {
            name: self._histogram_cls(
                name=f"vllm:semblend_{name}",
                documentation=text,
                buckets=list(buckets),
                labelnames=labelnames,
            )
            for name, (text, buckets) in _VALUES.items()
        }
        self._mode = self._gauge(MODE, MODE_TEXT, MODE)
        # Without values until the scheduler's first word: 0 would say that nothing is certified.
        self._gauges = {name: self._gauge(name, text) for name, text in _GAUGES.items()}
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        mode = ConnectorOptions.from_extra_config(extra).mode
        for engine in per_engine_labelvalues:
            self._mode.labels(*per_engine_labelvalues[engine], mode.value).set(1)
            # A scrape before the first request has them at 0.
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


def _add(table: dict[str, int], name: str, amount: int) -> None:
    if amount:
        table[name] = table.get(name, 0) + amount
