"""The gateway's Prometheus metrics. The router chooses a placement; the worker confirms it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from semblend.core.outcomes import Outcome
from semblend.fleet.directory.directory import Directory
from semblend.fleet.placement.chooser import Choice
from semblend.fleet.residency.caches import FollowedCaches
from semblend.serve.gateway.worker_pool import WorkerPool

_LOOKUP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0)


class GatewayMetrics:
    """Everything on a gateway's `/metrics`."""

    def __init__(
        self, directory: Directory, pool: WorkerPool, caches: FollowedCaches | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.placements = Counter(
            "semblend:placements",
            "Requests by the evidence the gateway chose by.",
            ["choice"],
            registry=self.registry,
        )
        self.confirmed = Counter(
            "semblend:confirmed",
            "Answers by the outcome the worker confirmed.",
            ["outcome"],
            registry=self.registry,
        )
        self.lookup = Histogram(
            "semblend:placement_seconds",
            "Time to sketch a prompt, look it up and choose.",
            registry=self.registry,
            buckets=_LOOKUP_BUCKETS,
        )
        self.responses = Counter(
            "semblend:gateway_responses",
            "Answers by worker and status.",
            ["worker", "status"],
            registry=self.registry,
        )
        self.retries = Counter(
            "semblend:gateway_retries",
            "Requests sent to another worker because one could not be reached.",
            registry=self.registry,
        )
        self._http = Counter(
            "semblend:http_responses",
            "HTTP responses by endpoint and status.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        for choice in Choice:
            self.placements.labels(choice.value)
        for outcome in Outcome:
            self.confirmed.labels(outcome.value)
        self.registry.register(_FleetCollector(directory, pool, caches))

    def responded(self, endpoint: str, status: int) -> None:
        """Count one HTTP response; `endpoint` is a route's pattern, so labels stay few."""
        self._http.labels(endpoint, str(status)).inc()

    def render(self) -> tuple[bytes, str]:
        """The text exposition and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


class _FleetCollector(Collector):
    """Gauges read from the directory and the pool at scrape time."""

    def __init__(
        self, directory: Directory, pool: WorkerPool, caches: FollowedCaches | None
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._caches = caches

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._directory.stats()
        for name, text, value in (
            ("directory_donors", "Donors the directory knows.", stats.donors),
            ("directory_ranks", "Ranks ever heard of.", stats.ranks),
            ("directory_suspended_ranks", "Ranks that are silent.", stats.suspended_ranks),
            ("directory_ranks_in_doubt", "Ranks asked to resend everything.", stats.ranks_in_doubt),
            ("directory_bytes", "Byte cap of the index.", stats.index_bytes),
            ("directory_events", "Events applied.", stats.events),
            ("directory_gaps", "Gaps seen in ranks' event ids.", stats.gaps),
            ("directory_refused_donors", "Donors refused for lack of room.", stats.refused_donors),
        ):
            yield GaugeMetricFamily(f"semblend:{name}", text, value=value)
        healthy = GaugeMetricFamily(
            "semblend:worker_healthy", "1 for a healthy worker.", labels=["worker"]
        )
        queued = GaugeMetricFamily(
            "semblend:worker_queued_tokens",
            "Prompt tokens whose answer has not begun.",
            labels=["worker"],
        )
        for worker in self._pool.workers.values():
            healthy.add_metric([worker.worker_id], float(worker.healthy))
            queued.add_metric([worker.worker_id], worker.queued_tokens)
        yield healthy
        yield queued
        yield from self._followed()

    def _followed(self) -> Iterable[Metric]:
        """What the engines' own caches report."""
        gauges = {
            name: GaugeMetricFamily(f"semblend:cache_{name}", text, labels=["worker"])
            for name, text in (
                ("resident_blocks", "Blocks the engine's cache holds, by its K/V events."),
                ("batches_replayed", "Batches of K/V events that were missed and fetched later."),
                ("gaps", "Times batches were lost for good, or the engine restarted."),
                ("unanswered", "Times the engine's replay socket did not answer."),
            )
        }
        for each in () if self._caches is None else self._caches.counts():
            for name, gauge in gauges.items():
                gauge.add_metric([each.worker_id], getattr(each, name))
        yield from gauges.values()
