"""From cells to figures. Nothing here measures; everything can be computed again from the files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.evidence.cells import ONE_BY_ONE, Cell, Request
from benchmarks.evidence.sweep import Highest, highest
from sembench import statistics

WINDOW = 50
"""Requests per point of a series over time."""
SOURCES = ("exact", "continued", "reused", "computed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Percentiles of a sample, in milliseconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """One cell in numbers."""

    rate: float
    requests: int
    failed: int
    ttft: Times | None
    gap: Times | None
    answered_per_second: float
    cpu_seconds_per_1000: float
    busy_seconds_per_1000: float
    tokens: Mapping[str, float]
    """Share of the prompts' tokens by source; `computed` includes what was recomputed."""
    recomputed: float
    """Share of the prompts' tokens that were found with a donor and computed all the same."""
    outcomes: Mapping[str, int]
    """Requests by what became of reuse, and why not."""
    decoding: float
    """Share of the engine's time in steps without any prompt token."""
    right: float | None
    """Share of the answers that state what they should, of those that can be checked."""
    memory_bytes: int


def passes(cell: Cell, *, limit_ms: float) -> bool:
    """Whether a rate holds: nothing failed, and the 99th percentile is within the limit."""
    figures = figures_of(cell)
    return not figures.failed and figures.ttft is not None and figures.ttft.p99 <= limit_ms


def times_of(values: Sequence[float]) -> Times | None:
    """The percentiles of a sample; None if it is empty."""
    if not values:
        return None
    p50, p90, p99 = (statistics.percentile(values, share) for share in (50, 90, 99))
    return Times(p50=p50, p90=p90, p99=p99)


def figures_of(cell: Cell) -> CellFigures:
    """Summarise a cell."""
    rows = [request.row for request in cell.requests]
    done = [row for row in rows if row.error is None]
    seconds = max((row.end_s for row in rows), default=0.0)
    per_1000 = 1000.0 / len(rows) if rows else math.nan
    judged = [request.right for request in cell.requests if request.right is not None]
    prompts = sum(request.prompt_tokens for request in cell.requests)
    return CellFigures(
        rate=cell.name.rate,
        requests=len(rows),
        failed=len(rows) - len(done),
        ttft=times_of([row.ttft_ms for row in done if row.ttft_ms is not None]),
        gap=times_of([gap for row in done for gap in row.gaps_ms]),
        answered_per_second=len(done) / seconds if seconds else 0.0,
        cpu_seconds_per_1000=cell.cpu_seconds * per_1000,
        busy_seconds_per_1000=cell.busy_seconds * per_1000,
        tokens=shares_of(cell.requests),
        recomputed=(
            sum(request.recomputed_tokens for request in cell.requests) / prompts
            if prompts
            else 0.0
        ),
        outcomes=Counter(request.outcome for request in cell.requests if request.outcome),
        decoding=cell.decode_seconds / cell.busy_seconds if cell.busy_seconds else 0.0,
        right=sum(judged) / len(judged) if judged else None,
        memory_bytes=cell.memory_bytes,
    )


def shares_of(requests: Iterable[Request]) -> dict[str, float]:
    """Share of the prompts' tokens by source; the shares add up to 1."""
    counts = dict.fromkeys(SOURCES, 0)
    prompts = 0
    for request in requests:
        prompts += request.prompt_tokens
        counts["exact"] += request.exact_tokens
        counts["continued"] += request.continued_tokens
        counts["reused"] += request.reused_tokens
    counts["computed"] = prompts - sum(counts.values())
    return {source: count / prompts if prompts else 0.0 for source, count in counts.items()}


def answers_as(cell: Cell, cold: Cell) -> float | None:
    """Share of requests answered word for word as by the arm that caches nothing."""
    pairs = [
        one.text == other.text
        for one, other in zip(cell.requests, cold.requests, strict=False)
        if one.row.error is None and other.row.error is None
    ]
    return sum(pairs) / len(pairs) if pairs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """The highest rate over the seeds of a sweep."""

    median: float
    low: float
    high: float
    seeds: int
    open_ended: bool
    """Whether some seed passed at every rate offered, so that the figure is a lower bound."""


def highest_rate(cells: Sequence[Cell], *, limit_ms: float) -> HighestRate | None:
    """The highest rate of one arm and workload; None if nothing was swept."""
    seeds: dict[int, dict[float, bool]] = {}
    for cell in cells:
        if cell.name.rate != ONE_BY_ONE:
            held = passes(cell, limit_ms=limit_ms)
            seeds.setdefault(cell.name.seed, {})[cell.name.rate] = held
    found: list[Highest] = [highest(passed) for passed in seeds.values()]
    if not found:
        return None
    rates = [each.rate for each in found]
    return HighestRate(
        median=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        seeds=len(rates),
        open_ended=any(each.saturated_at is None for each in found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """Some requests in a row of a series over time."""

    first: int
    """Number of the first request."""
    hit_share: float
    """Share of the prompts' tokens that were not computed."""
    speed_up: float | None
    """Median of cold over warm times to the first token, request by request."""


def windows(cell: Cell, cold: Cell | None, *, size: int = WINDOW) -> list[WindowFigures]:
    """A series over time, `size` requests at a time; an incomplete last window is left out."""
    found = []
    for first in range(0, len(cell.requests) - size + 1, size):
        part = cell.requests[first : first + size]
        ratios: list[float] = []
        if cold is not None:
            pairs = zip(part, cold.requests[first : first + size], strict=False)
            times = [(other.row.ttft_ms, one.row.ttft_ms) for one, other in pairs]
            ratios = [before / after for before, after in times if before and after]
        found.append(
            WindowFigures(
                first=first,
                hit_share=1.0 - shares_of(part)["computed"],
                speed_up=statistics.median(ratios) if ratios else None,
            )
        )
    return found


def decay(series: Sequence[WindowFigures]) -> float | None:
    """Speed-up of the last quarter over that of the second; 1 is no decay.

    The first quarter is left out: caches are empty at its start.
    """
    speeds = [window.speed_up for window in series if window.speed_up is not None]
    quarter = len(speeds) // 4
    if not quarter:
        return None
    early, late = speeds[quarter : 2 * quarter], speeds[-quarter:]
    return statistics.median(late) / statistics.median(early)
