"""The charts of certificates and leaderboards."""

from __future__ import annotations

from collections.abc import Sequence

from semblend.planning.policies.base import policy_from_spec
from semblend.quality.curves import DISTANCES, Curve
from semblend.quality.figures import Figures
from semblend.quality.reports.svg import Chart, Series

LEFT_OUT = ("cold", "all")
"""Equal to cold by definition, so they would only stretch the axis."""


def family(spec: str) -> str:
    """The name under which a policy's points are joined: its own, or that of a sum's parts."""
    policy = policy_from_spec(spec)
    return "span_head + query_attention" if policy.name == "both" else policy.name


def trade_off(figures: Sequence[Figures], workload: str, measure: str) -> Chart:
    """Plot a measure over the recomputed share, one line per family of policies."""
    rows = [row for row in figures if row.workload == workload and row.policy not in LEFT_OUT]
    lines: dict[str, list[Figures]] = {}
    for row in rows:
        lines.setdefault(family(row.policy), []).append(row)
    answers = measure == "right"
    series = tuple(
        Series(
            name=name,
            points=tuple((_share(row), getattr(row, measure)) for row in _in_order(points)),
            intervals=tuple(
                row.right_interval if answers else row.kl_interval for row in _in_order(points)
            )
            if answers
            else (),
        )
        for name, points in lines.items()
    )
    title = "right answers" if answers else "KL against cold, nats"
    return Chart(
        title=f"{workload}: {title}",
        x="share of reusable tokens computed (%)",
        y=title,
        series=series,
        log_y=not answers,
        line=rows[0].cold_right if rows and answers else None,
    )


def by_layer(curves: Sequence[Curve], policy: str) -> Chart:
    """Mean deviation per layer."""
    return Chart(
        title=f"deviation of reused K/V by layer, {policy}",
        x="layer",
        y="relative deviation",
        series=tuple(
            Series(
                name=workload,
                points=tuple(
                    (float(layer), _mean([curve.layers[layer] for curve in mine]))
                    for layer in range(len(mine[0].layers))
                ),
            )
            for workload, mine in _by_workload(curves, policy).items()
        ),
    )


def by_position(curves: Sequence[Curve], policy: str) -> Chart:
    """Mean deviation by distance from the start of the span (log2 buckets)."""
    series: list[Series] = []
    for workload, mine in _by_workload(curves, policy).items():
        points: list[tuple[float, float]] = []
        for bucket in range(len(DISTANCES)):
            values = [v for curve in mine if (v := curve.positions[bucket]) is not None]
            if values:
                points.append((float(bucket), _mean(values)))
        series.append(Series(name=workload, points=tuple(points)))
    return Chart(
        title=f"deviation by distance from the span's head, {policy}",
        x=f"bucket: 0 to {len(DISTANCES) - 1} = {', '.join(map(str, DISTANCES))}+ tokens",
        y="relative deviation",
        series=tuple(series),
    )


def _by_workload(curves: Sequence[Curve], policy: str) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.policy == policy:
            name = (
                f"{curve.workload}_{curve.kind}" if curve.workload == "edited" else curve.workload
            )
            groups.setdefault(name, []).append(curve)
    return groups


def _share(row: Figures) -> float:
    return 100 * (row.declined + (1 - row.declined) * row.recompute)


def _in_order(rows: Sequence[Figures]) -> list[Figures]:
    return sorted(rows, key=_share)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
