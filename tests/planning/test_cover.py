"""The cover is the best there is."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.discovery.runs import DonorRun
from semblend.planning.cost import CostModel
from semblend.planning.cover import best_cover

COST = CostModel(attention_tokens=50.0, load=0.1, span_fixed=3.0)


@st.composite
def run_lists(draw):
    runs = []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 50))
        runs.append(
            DonorRun(
                donor_id=f"d{number}",
                donor_start=draw(st.integers(0, 20)),
                target_start=start,
                length=draw(st.integers(1, 20)),
            )
        )
    return runs


def test_of_equal_runs_the_one_that_moves_least_is_taken():
    far, near = (
        DonorRun(donor_id=str(at), donor_start=at, target_start=100, length=60) for at in (300, 97)
    )
    for runs in ([far, near], [near, far]):
        assert best_cover(runs, cost=COST, start=0, end=200, min_span_tokens=16) == [near]


def value(covered, spans):
    """Gain of a set of positions less a fixed cost per span, token by token."""
    return sum(COST.gain(at, at + 1) for at in covered) - COST.span_fixed * spans


def brute_force(runs, start, end, shortest):
    """The best over all subsets of runs: their union, one span a run (overlaps split)."""
    clipped = [set(range(max(run.target_start, start), min(run.target_end, end))) for run in runs]
    clipped = [run for run in clipped if len(run) >= shortest]
    return max(
        value(set().union(*chosen), len(chosen))
        for size in range(len(clipped) + 1)
        for chosen in itertools.combinations(clipped, size)
    )


@given(runs=run_lists(), start=st.integers(0, 10), end=st.integers(30, 70))
@settings(deadline=None)
def test_no_other_choice_of_runs_saves_more(runs, start, end):
    chosen = best_cover(runs, cost=COST, start=start, end=end, min_span_tokens=2)
    covered = {at for run in chosen for at in range(run.target_start, run.target_end)}
    found = value(covered, len(chosen))
    assert abs(found - brute_force(runs, start, end, 2)) < 1e-9


@given(runs=run_lists(), start=st.integers(0, 10), end=st.integers(30, 70))
def test_spans_are_parts_of_runs_disjoint_and_in_bounds(runs, start, end):
    chosen = best_cover(runs, cost=COST, start=start, end=end, min_span_tokens=2)
    by_id = {run.donor_id: run for run in runs}
    at = start
    for span in chosen:
        run = by_id[span.donor_id]
        assert at <= span.target_start < span.target_end <= end
        assert run.target_start <= span.target_start
        assert span.target_end <= run.target_end
        assert span.donor_start - span.target_start == run.donor_start - run.target_start
        at = span.target_end


@given(runs=run_lists())
def test_the_order_of_donors_changes_nothing_about_the_value(runs):
    def total(order):
        chosen = best_cover(order, cost=COST, start=0, end=70, min_span_tokens=2)
        covered = {at for run in chosen for at in range(run.target_start, run.target_end)}
        return value(covered, len(chosen))

    assert abs(total(runs) - total(runs[::-1])) < 1e-9


def test_overlaps_are_split_not_dropped():
    one = DonorRun(donor_id="a", donor_start=0, target_start=0, length=60)
    two = DonorRun(donor_id="b", donor_start=0, target_start=40, length=60)
    chosen = best_cover([one, two], cost=COST, start=0, end=100, min_span_tokens=8)
    assert [(run.donor_id, run.target_start, run.target_end) for run in chosen] == [
        ("a", 0, 60),
        ("b", 60, 100),
    ]
