"""Prometheus metrics: the app's own registry, with counters fed by engine-confirmed reports.

Names follow what operators already graph (see docs/serve.md). No label names a tenant, a
donor or a request. Approximate reuse (`materialized`) is separate from exact hits
(`exact`) and never counts as a cache hit.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from semblend.core.outcomes import DeclineReason, Outcome
from semblend.engine.api import RequestReport
from semblend.serve.entry_queue import EntryQueue
from semblend.serve.protocols import ServedEngine

_LOOKUP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0)
_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOTAL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class ServerMetrics:
    """Everything on `/metrics`."""

    def __init__(self, engine: ServedEngine, entry_queue: EntryQueue) -> None:
        self.registry = CollectorRegistry()
        self._tokens = Counter(
            "semblend:tokens",
            "Prompt tokens by source: exact (prefix cache), continued (the conversation's own "
            "K/V, approximate), materialized (donor K/V, load confirmed), recomputed (inside "
            "spans, for quality), computed (all others). reusable counts computed tokens a second "
            "time: those that donors hold but that may not be loaded.",
            ["stage"],
            registry=self.registry,
        )
        self._requests = Counter(
            "semblend:requests", "Requests by outcome.", ["outcome"], registry=self.registry
        )
        self._declines = Counter(
            "semblend:declines",
            "Requests whose tokens were computed rather than reused, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._output_tokens = Counter(
            "semblend:output_tokens", "Tokens generated.", registry=self.registry
        )
        self._lookup = Histogram(
            "semblend:lookup_seconds",
            "Time to look for donors.",
            registry=self.registry,
            buckets=_LOOKUP_BUCKETS,
        )
        self._ttft = Histogram(
            "semblend:time_to_first_token_seconds",
            "From submission to the first token.",
            ["outcome"],
            registry=self.registry,
            buckets=_TTFT_BUCKETS,
        )
        self._total = Histogram(
            "semblend:request_seconds",
            "From submission to the last token.",
            ["outcome"],
            registry=self.registry,
            buckets=_TOTAL_BUCKETS,
        )
        self._responses = Counter(
            "semblend:http_responses",
            "HTTP responses by endpoint and status.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._prepare_labels()
        self.registry.register(EngineCollector(engine, entry_queue))

    def observe(self, report: RequestReport) -> None:
        """Count one request that the engine has finished."""
        self._tokens.labels("exact").inc(report.exact_tokens)
        self._tokens.labels("continued").inc(report.continued_tokens)
        self._tokens.labels("materialized").inc(report.reused_tokens)
        self._tokens.labels("recomputed").inc(report.recomputed_tokens)
        self._tokens.labels("computed").inc(report.computed_tokens - report.recomputed_tokens)
        self._tokens.labels("reusable").inc(sum(end - start for start, end in report.found))
        self._requests.labels(report.outcome.value).inc()
        self._output_tokens.inc(report.output_tokens)
        self._lookup.observe(report.lookup_ms / 1000.0)
        if report.reason is not None:
            self._declines.labels(report.reason.value).inc()
        if report.output_tokens:
            self._ttft.labels(report.outcome.value).observe(report.ttft_ms / 1000.0)
        self._total.labels(report.outcome.value).observe(report.total_ms / 1000.0)

    def responded(self, endpoint: str, status: int) -> None:
        """Count one HTTP response; `endpoint` is a route pattern, which limits the labels."""
        self._responses.labels(endpoint, str(status)).inc()

    def render(self) -> tuple[bytes, str]:
        """The text exposition and its content type.

        Not OpenMetrics: this client library would turn the colons of our names into
        underscores there, and a dashboard must not depend on the scraper.
        """
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def _prepare_labels(self) -> None:
        """Create all series at the start, so that a rate includes the first event."""
        stages = ("exact", "continued", "materialized", "recomputed", "computed", "reusable")
        for stage in stages:
            self._tokens.labels(stage)
        for outcome in Outcome:
            self._requests.labels(outcome.value)
        for reason in DeclineReason:
            self._declines.labels(reason.value)


def _timestamp(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


class EngineCollector(Collector):
    """Gauges read from the engine and the gate at scrape time."""

    def __init__(self, engine: ServedEngine, entry_queue: EntryQueue) -> None:
        self._engine = engine
        self._entry_queue = entry_queue

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not query the engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        for name, text, value in (
            ("running_requests", "Requests running in the engine.", stats.running),
            ("waiting_requests", "Requests waiting inside the engine.", stats.waiting),
            ("queued_requests", "Requests waiting for a slot.", self._entry_queue.waiting),
            ("pool_pages", "Pages of the K/V pool.", stats.pool_pages),
            ("pool_pages_free", "Free pages of the K/V pool.", stats.pool_pages_free),
            ("donors", "Donors held.", stats.donors),
            ("index_bytes", "Bytes of the donor index.", stats.index_bytes),
            ("index_capacity_bytes", "Byte cap of the index.", stats.index_capacity_bytes),
            ("certified", "1 if a quality certificate allows reuse.", int(stats.certified)),
            (
                "certificate_expiry_timestamp_seconds",
                "When the certificate expires, Unix time; 0 without one.",
                _timestamp(stats.certificate_until),
            ),
            ("shadow_divergence", "Mean KL against cold, nats.", stats.shadow_divergence),
            (
                "shadow_disagreement",
                "Share of top tokens unlike cold's.",
                stats.shadow_disagreement,
            ),
            ("suspended_namespaces", "Namespaces with reuse off.", stats.suspended_namespaces),
            ("chains", "Conversations kept over approximate K/V.", stats.chains),
            ("chain_bytes", "Bytes of the K/V pool they hold.", stats.chain_bytes),
            ("loading", "1 while donor K/V may be loaded.", int(stats.loading)),
            ("captures_waiting", "Prompts waiting to be captured.", stats.captures_waiting),
        ):
            yield GaugeMetricFamily(f"semblend:{name}", text, value=value)
        mode = GaugeMetricFamily("semblend:mode", "1 for the current mode.", labels=["mode"])
        mode.add_metric([stats.mode], 1)
        yield mode
        for name, text, values in (
            ("tier_bytes", "Bytes of donor K/V held.", stats.tier_bytes),
            ("tier_capacity_bytes", "Byte cap of the tier.", stats.tier_capacity_bytes),
        ):
            family = GaugeMetricFamily(f"semblend:{name}", text, labels=["tier"])
            for tier, size in values.items():
                family.add_metric([tier], size)
            yield family
        yield CounterMetricFamily(
            "semblend:shadow_samples",
            "Reused requests that were also computed cold.",
            value=stats.shadow_samples,
        )
        yield CounterMetricFamily(
            "semblend:promoted_tokens",
            "Tokens of conversations computed exactly in idle steps.",
            value=stats.promoted_tokens,
        )
        yield CounterMetricFamily(
            "semblend:captures_skipped",
            "Prompts not captured because too many were waiting.",
            value=stats.captures_skipped,
        )
        yield CounterMetricFamily(
            "semblend:donor_evictions", "Donors evicted.", value=stats.evictions
        )
        yield CounterMetricFamily(
            "semblend:donor_registrations", "Donors registered.", value=stats.registrations
        )
