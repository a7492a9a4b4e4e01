"""Prometheus pages: read, snapshot, subtract.

A window is the difference of two snapshots. Reuse counters of different engines are mapped
to one name each, whether or not a counter's name ends in `_total`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sembench.errors import MissingExtraError, ResultError

SNAPSHOT_VERSION = "sembench.snapshot.v1"

SEMANTICS: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "external_prefix_cache_hits": (("vllm:external_prefix_cache_hits", {}),),
    "external_prefix_cache_queries": (("vllm:external_prefix_cache_queries", {}),),
    "external_kv_transfer_tokens": (
        ("vllm:prompt_tokens_by_source", {"source": "external_kv_transfer"}),
    ),
    "prefix_cache_hits": (("vllm:prefix_cache_hits", {}),),
    "prefix_cache_queries": (("vllm:prefix_cache_queries", {}),),
    "prompt_tokens": (("vllm:prompt_tokens", {}), ("sglang:prompt_tokens", {})),
    "sglang_cached_tokens": (("sglang:cached_tokens", {}),),
    "semblend_materialized_tokens": (
        ("semblend:tokens", {"stage": "materialized"}),
        ("vllm:semblend_tokens", {"source": "reused"}),
        ("sglang:semblend_tokens", {"source": "reused"}),
    ),
    "semblend_exact_tokens": (
        ("semblend:tokens", {"stage": "exact"}),
        ("vllm:semblend_tokens", {"source": "exact"}),
        ("sglang:semblend_tokens", {"source": "exact"}),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One sample line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def key(self) -> str:
        """Name and sorted labels, the key in a snapshot."""
        if not self.labels:
            return self.name
        labels = ",".join(
            f'{name}="{_escaped(value)}"' for name, value in sorted(self.labels.items())
        )
        return f"{self.name}{{{labels}}}"


def parse(page: str) -> list[MetricSample]:
    """The samples of a page in Prometheus' text format, without NaN values.

    Raises
    ------
    ResultError
        If the page is not in that format.
    MissingExtraError
        If prometheus-client is not installed.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingExtraError(
            package="prometheus-client", extra="benchmarks", purpose="an engine's counters"
        ) from error
    try:
        return [
            MetricSample(name=sample.name, labels=sample.labels, value=float(sample.value))
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.value == sample.value
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise ResultError(f"not a page in Prometheus' text format ({error})") from error


def delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """after − before for every sample in both, summed over endpoints.

    A counter that decreased means that the engine restarted in between; the window is
    then worthless and is refused.
    """
    first, second = _endpoints(before, "before"), _endpoints(after, "after")
    if set(first) != set(second):
        raise ResultError(
            f"snapshots are of different endpoints: {sorted(first)} and {sorted(second)}"
        )
    totals: dict[str, float] = {}
    for url, later in second.items():
        for key, value in later.items():
            earlier = first[url].get(key, 0.0)
            if key.split("{")[0].endswith("_total") and value < earlier:
                raise ResultError(f"{url}: {key} fell from {earlier} to {value}; engine restarted?")
            totals[key] = totals.get(key, 0.0) + value - earlier
    return totals


def semantics(window: Mapping[str, float]) -> dict[str, float | None]:
    """What a window says about reuse, under our names; None for what no engine counts."""
    found: dict[str, float | None] = {}
    samples = parse("".join(f"{key} {value!r}\n" for key, value in window.items()))
    for meaning, sources in SEMANTICS.items():
        values = [
            sample.value
            for sample in samples
            if any(
                sample.name.removesuffix("_total") == wanted
                and want.items() <= sample.labels.items()
                for wanted, want in sources
            )
        ]
        found[meaning] = sum(values) if values else None
    return found


def window(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The `prometheus` part of a result's `engine` section."""
    difference = delta(before, after)
    return {
        "endpoints": sorted(after["endpoints"]),
        "before": dict(before),
        "after": dict(after),
        "delta": difference,
        "semantics": semantics(difference),
    }


def semantic_tokens(meanings: Mapping[str, Any]) -> float | None:
    """Prompt tokens loaded from donors, by whichever counter the engine has."""
    names = (
        "semblend_materialized_tokens",
        "external_kv_transfer_tokens",
        "external_prefix_cache_hits",
    )
    counted = [meanings[name] for name in names if meanings.get(name) is not None]
    return max(counted) if counted else None


def _endpoints(taken: Mapping[str, Any], where: str) -> Mapping[str, Mapping[str, float]]:
    endpoints = taken.get("endpoints")
    if taken.get("snapshot_version") != SNAPSHOT_VERSION or not isinstance(endpoints, Mapping):
        raise ResultError(f"{where}: not a snapshot of version {SNAPSHOT_VERSION!r}")
    return endpoints


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
