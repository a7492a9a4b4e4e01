"""Percentiles and bootstrap intervals.

Ratios are paired: each warm request is compared with its own cold one before anything
is averaged, so that a few long prompts cannot dominate the headline.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
SEED = "sembench-ci"
LOWER_PERCENTILE = 2.5
UPPER_PERCENTILE = 97.5
_CHUNK_VALUES = 1 << 22

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A statistic over `count` values, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    count: int

    def to_dict(self) -> dict[str, float | int]:
        return {"value": self.value, "lo": self.low, "hi": self.high, "n": self.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Summary of a sample."""

    count: int
    mean: float
    minimum: float
    p50: float
    p90: float
    p95: float
    p99: float
    maximum: float

    def to_dict(self) -> dict[str, float | int]:
        return {
            "n": self.count,
            "mean": self.mean,
            "min": self.minimum,
            "p50": self.p50,
            "p90": self.p90,
            "p95": self.p95,
            "p99": self.p99,
            "max": self.maximum,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile with linear interpolation between order statistics."""
    if not values:
        raise ValueError("percentile: expected at least one value")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"percentile: expected 0 to 100, got {percent}")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100.0
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Sequence[float]) -> float:
    return percentile(values, 50.0)


def distribution(values: Sequence[float]) -> Distribution | None:
    """Summarize a sample; None if it is empty."""
    if not values:
        return None
    return Distribution(
        count=len(values),
        mean=math.fsum(values) / len(values),
        minimum=min(values),
        p50=percentile(values, 50),
        p90=percentile(values, 90),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
        maximum=max(values),
    )


def bootstrap_median(values: Sequence[float]) -> Interval | None:
    return bootstrap(values, lambda samples: np.median(samples, axis=1))


def bootstrap_mean(values: Sequence[float]) -> Interval | None:
    return bootstrap(values, lambda samples: np.mean(samples, axis=1))


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = RESAMPLES,
    seed: str = SEED,
) -> Interval | None:
    """A statistic and its percentile bootstrap interval; None for an empty sample.

    `statistic` maps resampled values of shape [samples, count] to shape [samples].
    The same values in the same order give the same interval everywhere.
    """
    if not values:
        return None
    data: Floats = np.asarray(values, dtype=np.float64)
    digest = hashlib.sha256(seed.encode("utf-8")).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    # Draw in chunks so that a large sample does not need resamples x count values of memory.
    rows = max(1, _CHUNK_VALUES // len(data))
    statistics: list[float] = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), len(data))
        picks = generator.integers(0, len(data), size=shape)
        statistics.extend(float(value) for value in statistic(data[picks]))
    return Interval(
        value=float(statistic(data[np.newaxis, :])[0]),
        low=percentile(statistics, LOWER_PERCENTILE),
        high=percentile(statistics, UPPER_PERCENTILE),
        count=len(data),
    )


def paired_ratios(cold: Sequence[float], warm: Sequence[float]) -> list[float]:
    """cold/warm for every pair whose values are both positive."""
    return [
        before / after for before, after in zip(cold, warm, strict=True) if before > 0 and after > 0
    ]
