"""Compares results of one manifest: each figure with its interval, differences paired.

The first result is the baseline. Differences are computed item by item over the items
both results have, so items that one run skipped cannot shift them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sembench import statistics
from sembench.errors import ResultError
from sembench.results import RequestRow, Result

Measure = Callable[[RequestRow], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One compared figure: how to read it from a row and how to combine rows."""

    name: str
    measure: Measure
    ratio: bool = False
    """Compared as baseline / other (times) instead of other - baseline (rates)."""
    median: bool = False


def _of(name: str) -> Measure:
    def measure(row: RequestRow) -> float | None:
        value = getattr(row, name)
        return None if value is None else float(value)

    return measure


FIGURES: tuple[Figure, ...] = (
    Figure(name="ttft_ms", measure=_of("ttft_ms"), ratio=True, median=True),
    Figure(name="latency_ms", measure=_of("latency_ms"), ratio=True, median=True),
    Figure(name="ttft_speedup", measure=_of("ttft_speedup"), median=True),
    Figure(name="exact_block_hit_rate", measure=_of("exact_block_hit_rate")),
    Figure(name="semantic_eligible_block_rate", measure=_of("semantic_eligible_block_rate")),
    Figure(name="backend_confirmed_block_rate", measure=_of("backend_confirmed_block_rate")),
    Figure(name="quality_pass", measure=_of("quality_pass")),
    Figure(name="quality_score", measure=_of("quality_score")),
    Figure(name="donor_fact_leak", measure=_of("donor_fact_leak")),
)


def compare(
    results: Sequence[tuple[str, Result]], *, allow_different_manifests: bool = False
) -> dict[str, Any]:
    """Compare results: the `figures` of each and the `differences` to the first.

    Raises
    ------
    ResultError
        If there are fewer than two results, or their manifests differ.
    """
    if len(results) < 2:
        raise ResultError("compare: expected at least two results")
    manifests = {result.run.manifest_sha256 for _, result in results}
    if len(manifests) > 1 and not allow_different_manifests:
        raise ResultError(
            "compare: the results have different manifests; "
            "--allow-different-manifests compares the items they share"
        )
    baseline_name, baseline = results[0]
    return {
        "baseline": baseline_name,
        "results": [_identity(name, result) for name, result in results],
        "figures": {
            figure.name: {name: _interval(figure, result) for name, result in results}
            for figure in FIGURES
        },
        "differences": {
            name: {figure.name: _difference(figure, baseline, result) for figure in FIGURES}
            for name, result in results[1:]
        },
    }


def _identity(name: str, result: Result) -> dict[str, Any]:
    return {
        "name": name,
        "run_id": result.run.run_id,
        "engine": result.run.engine,
        "backend_id": result.run.backend_id,
        "model": result.config.get("model"),
        "manifest_sha256": result.run.manifest_sha256,
        "requests": len(result.requests),
    }


def _interval(figure: Figure, result: Result) -> dict[str, Any] | None:
    values = [
        value
        for row in result.requests
        if row.error is None and (value := figure.measure(row)) is not None
    ]
    return _bootstrapped(figure, values)


def _difference(figure: Figure, baseline: Result, other: Result) -> dict[str, Any] | None:
    before = {row.item_id: figure.measure(row) for row in baseline.requests if row.error is None}
    pairs = [
        (first, second)
        for row in other.requests
        if row.error is None
        and (first := before.get(row.item_id)) is not None
        and (second := figure.measure(row)) is not None
    ]
    if figure.ratio:
        values = statistics.paired_ratios([a for a, _ in pairs], [b for _, b in pairs])
    else:
        values = [second - first for first, second in pairs]
    found = _bootstrapped(figure, values)
    if found is None:
        return None
    neutral = 1.0 if figure.ratio else 0.0
    return {
        **found,
        "kind": "ratio" if figure.ratio else "difference",
        "significant": not found["lo"] <= neutral <= found["hi"],
    }


def _bootstrapped(figure: Figure, values: Sequence[float]) -> dict[str, Any] | None:
    interval = (
        statistics.bootstrap_median(values) if figure.median else statistics.bootstrap_mean(values)
    )
    return None if interval is None else interval.to_dict()
