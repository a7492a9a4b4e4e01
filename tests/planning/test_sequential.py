"""The test that watches shadow samples: rarely wrong, and quick where the bound is broken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SettingsError
from semblend.planning.sequential import BettingTest, samples_to_notice


def first_alarm(values, **options):
    test = BettingTest(**options)
    for count, value in enumerate(values, 1):
        if test.observe(value):
            return count
    return None


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_false_alarms_are_as_rare_as_promised_however_long_one_watches(share):
    # At the bound exactly, the worst case the promise covers; hits of another size too.
    rng = np.random.default_rng(5)
    alarms = sum(
        first_alarm(share * (rng.random(600) < 0.05 / share), bound=0.05, alpha=0.05) is not None
        for _ in range(400)
    )
    assert alarms <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_a_broken_bound_is_noticed_soon():
    rng = np.random.default_rng(6)
    waits = [first_alarm(rng.random(400) < 0.5, bound=0.05) for _ in range(100)]
    assert None not in waits
    assert np.median(waits) <= 15
    mild = [first_alarm(rng.random(2000) < 0.15, bound=0.05) for _ in range(50)]
    assert sum(wait is None for wait in mild) <= 2


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5])
def test_the_stated_number_of_samples_is_what_it_takes(rate):
    rng = np.random.default_rng(7)
    waits = [first_alarm(rng.random(4000) < rate, bound=0.05) for _ in range(60)]
    stated = samples_to_notice(rate, bound=0.05)
    assert 0.5 * stated <= np.median(waits) <= 1.5 * stated


def test_one_wrong_answer_in_a_hundred_is_never_noticed():
    assert samples_to_notice(0.01, bound=0.05) == np.inf
    rng = np.random.default_rng(8)
    assert first_alarm(rng.random(20_000) < 0.01, bound=0.05) is None


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0.01, 0.5))
def test_the_evidence_never_depends_on_the_order(values, bound):
    forward, backward = BettingTest(bound=bound), BettingTest(bound=bound)
    for value in values:
        forward.observe(value)
    for value in reversed(values):
        backward.observe(value)
    assert forward.log_wealth == pytest.approx(backward.log_wealth, abs=1e-9)
    assert forward.mean == pytest.approx(sum(values) / len(values) if values else 0.0)


@pytest.mark.parametrize("options", [{"bound": 0.0}, {"bound": 1.0}, {"bound": 0.1, "alpha": 0}])
def test_impossible_bounds_are_refused(options):
    with pytest.raises(SettingsError):
        BettingTest(**options)
