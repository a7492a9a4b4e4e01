"""Confidence intervals shown with every figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Z_95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval for a proportion. Unlike the usual one, it is reliable near 0 and 1.

    >>> low, high = wilson(1000, 1000)
    >>> round(low, 4), high
    (0.9962, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1 + z * z / trials
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else (middle - spread) / scale
    high = 1.0 if successes == trials else (middle + spread) / scale
    return max(0.0, low), min(1.0, high)


def paired_loss(lost: int, won: int, pairs: int, z: float = Z_95) -> tuple[float, float]:
    """Tango's score interval for (lost - won) / pairs, with each item judged both ways.

    It is reliable even if nothing differs, in which case the usual interval has no width.

    >>> low, high = paired_loss(0, 0, 300)
    >>> round(low, 4), round(high, 4)
    (-0.0126, 0.0126)
    """
    if pairs == 0:
        return -1.0, 1.0

    def score(loss: float) -> float:
        linear = (2 * pairs - lost + won) * loss - lost - won
        root = math.sqrt(max(0.0, linear * linear + 8 * pairs * won * loss * (1 - loss)))
        other = (root - linear) / (4 * pairs)
        spread = pairs * (2 * other + loss * (1 - loss))
        return (lost - won - pairs * loss) / math.sqrt(max(spread, 1e-300))

    def where(level: float, low: float, high: float) -> float:
        for _ in range(60):  # the score falls as the assumed loss grows
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > level else (low, middle)
        return (low + high) / 2

    found = (lost - won) / pairs
    return where(z, -1.0, found), where(-z, found, 1.0)


def bootstrap_mean(
    values: Sequence[float], *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval (95 %) of a mean, for any distribution."""
    return _bootstrap(values, lambda drawn: drawn.mean(axis=1), resamples, seed)


def bootstrap_median(
    values: Sequence[float], *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval (95 %) of a median, for timings with outliers."""
    return _bootstrap(values, lambda drawn: np.median(drawn, axis=1), resamples, seed)


def _bootstrap(
    values: Sequence[float],
    statistic: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """`statistic` maps drawn values [resamples, count] to [resamples]."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return 0.0, 0.0
    draws = np.random.default_rng(seed).integers(0, data.size, size=(resamples, data.size))
    low, high = np.quantile(statistic(data[draws]), (0.025, 0.975))
    return float(low), float(high)


def at_most(successes: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided upper bound for a proportion: exact, never too small.

    >>> round(at_most(0, 5000), 6)
    0.000599
    """
    if successes >= trials:
        return 1.0
    log_choose = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        for k in range(successes + 1)
    ]

    def no_more(share: float) -> float:
        """Probability of this few successes."""
        hit, miss = math.log(share), math.log1p(-share)
        return sum(math.exp(c + k * hit + (trials - k) * miss) for k, c in enumerate(log_choose))

    low, high = successes / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if no_more(middle) > 1 - confidence else (low, middle)
    return high
