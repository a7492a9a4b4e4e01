"""The cost model adds up and never favours doing more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SettingsError
from semblend.core.plan import Plan, Span
from semblend.planning.cost import CostModel

positions = st.integers(0, 5_000)


@given(st.tuples(positions, positions, positions).map(sorted))
def test_cost_of_a_run_is_the_sum_of_its_parts(bounds):
    low, middle, high = bounds
    cost = CostModel(attention_tokens=1000.0)
    whole = cost.compute(low, high)
    assert whole == pytest.approx(cost.compute(low, middle) + cost.compute(middle, high))


@given(start=st.integers(0, 400), length=st.integers(1, 500))
def test_longer_spans_never_cost_more(start, length):
    cost = CostModel()

    def planned(tokens):
        span = Span(donor_id="d", donor_start=0, target_start=start, length=tokens)
        plan = Plan(namespace="n", prompt_tokens=1_000, spans=(span,), end=start + tokens)
        return cost.estimate(plan).planned

    assert planned(length) < planned(max(1, length - 1)) or length == 1


def test_nothing_reused_costs_what_cold_costs():
    estimate = CostModel().estimate(Plan(namespace="n", prompt_tokens=500))
    assert estimate.saved == 0
    assert estimate.speedup == 1


def test_the_attention_term_follows_the_models_shape():
    cost = CostModel.for_model(parameters=6_530_000_000, layers=28, query_heads=28, head_dim=128)
    assert cost.attention_tokens == pytest.approx(32_536, rel=0.01)


@pytest.mark.parametrize("bad", [{"attention_tokens": 0}, {"load": -1}, {"span_fixed": -1}])
def test_bad_coefficients_are_named(bad):
    with pytest.raises(SettingsError, match=next(iter(bad))):
        CostModel(**bad)
