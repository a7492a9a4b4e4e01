"""Statistics against numpy's own and against laws that any interval must keep."""

from __future__ import annotations

import statistics as standard

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench import statistics

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(samples, st.floats(0.0, 100.0))
def test_percentiles_equal_numpys_linear_ones(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent, method="linear"))
    assert statistics.percentile(values, percent) == pytest.approx(expected, abs=1e-6)


@given(samples)
def test_medians_equal_the_standard_librarys(values: list[float]) -> None:
    assert statistics.median(values) == pytest.approx(standard.median(values), abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(samples)
def test_an_interval_lies_within_the_sample_and_is_the_same_every_time(
    values: list[float],
) -> None:
    interval = statistics.bootstrap_median(values)
    assert interval is not None
    assert min(values) - 1e-6 <= interval.low <= interval.high <= max(values) + 1e-6
    assert interval == statistics.bootstrap_median(values)


@settings(max_examples=10, deadline=None)
@given(samples, st.floats(0.1, 10.0))
def test_intervals_scale_with_the_values(values: list[float], factor: float) -> None:
    plain = statistics.bootstrap_mean(values)
    scaled = statistics.bootstrap_mean([value * factor for value in values])
    assert plain is not None
    assert scaled is not None
    tolerance = 1e-6 * max(1.0, max(map(abs, values)) * factor)
    assert scaled.low == pytest.approx(plain.low * factor, abs=tolerance)
    assert scaled.high == pytest.approx(plain.high * factor, abs=tolerance)


def test_a_mean_interval_agrees_with_the_normal_formula_on_a_large_sample() -> None:
    values = np.random.default_rng(7).normal(10.0, 2.0, size=400).tolist()
    interval = statistics.bootstrap_mean(values)
    assert interval is not None
    error = 1.96 * standard.stdev(values) / len(values) ** 0.5
    assert interval.low == pytest.approx(standard.mean(values) - error, abs=0.05)
    assert interval.high == pytest.approx(standard.mean(values) + error, abs=0.05)


def test_intervals_of_a_large_sample_do_not_depend_on_how_they_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = list(map(float, range(100)))
    whole = statistics.bootstrap_mean(values)
    monkeypatch.setattr(statistics, "_CHUNK_VALUES", 700)
    pieces = statistics.bootstrap_mean(values)
    assert whole is not None
    assert pieces is not None
    assert (pieces.low, pieces.high) == (whole.low, whole.high)


def test_nothing_has_no_interval_and_no_distribution() -> None:
    assert statistics.bootstrap_median([]) is None
    assert statistics.distribution([]) is None
    with pytest.raises(ValueError, match="at least one value"):
        statistics.percentile([], 50)


def test_ratios_are_paired_and_leave_out_what_cannot_be_divided() -> None:
    assert statistics.paired_ratios([10.0, 8.0, 5.0], [2.0, 0.0, 5.0]) == [5.0, 1.0]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        statistics.paired_ratios([1.0, 2.0], [1.0])
