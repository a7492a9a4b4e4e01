"""A request goes where it is expected to start first, and every choice says why."""

import pytest

from semblend.core.errors import SettingsError
from semblend.core.outcomes import Outcome
from semblend.fleet.directory.answers import Found, WorkerHolding
from semblend.fleet.directory.index import SharedDonor
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.placement.expected_time import FleetCost

COST = FleetCost()


def holding(worker, covered, prefix=0):
    return WorkerHolding(
        worker_id=worker,
        dp_rank=0,
        covered_tokens=covered,
        prefix_tokens=prefix,
        donor_key=1,
        donor_covered_tokens=covered,
    )


def workers(**queued):
    return [WorkerLoad(worker_id=name, queued_tokens=tokens) for name, tokens in queued.items()]


def test_an_idle_donor_owner_is_taken():
    placed = choose(8192, Found(holdings=(holding("b", 6000),)), workers(a=0, b=0), COST)
    assert placed.choice is Choice.DONOR
    assert placed.pinned.worker_id == "b"
    assert placed.choice.outcome is Outcome.PLACEMENT


def test_a_busy_donor_owner_is_left_alone():
    """The law: a longer queue than the reuse saves makes the router's choice better."""
    found = Found(holdings=(holding("b", 6000),))
    assert choose(8192, found, workers(a=0, b=1000), COST).choice is Choice.DONOR
    placed = choose(8192, found, workers(a=0, b=20_000), COST)
    assert placed.choice is Choice.ROUTER
    assert placed.pinned is None
    assert placed.option.worker_id == "a"


def test_the_choice_is_the_option_of_least_expected_time():
    found = Found(holdings=(holding("a", 2000), holding("b", 6000), holding("c", 4000, 4000)))
    for queue in (0, 2000, 6000, 12_000):
        placed = choose(8192, found, workers(a=0, b=queue, c=queue // 2, d=100), COST)
        best = min(option.expected_s for option in placed.options)
        if placed.choice is not Choice.ROUTER:
            assert placed.option.expected_s == best


def test_an_exact_prefix_is_told_from_a_donor():
    found = Found(holdings=(holding("b", 4096, prefix=4096),))
    placed = choose(8192, found, workers(a=0, b=0), COST)
    assert placed.choice is Choice.EXACT_PREFIX
    assert placed.choice.outcome is not Outcome.PLACEMENT


def test_without_materialising_workers_only_exact_prefixes_count():
    found = Found(holdings=(holding("b", 8000, prefix=512),))
    placed = choose(8192, found, workers(a=0, b=0), COST, can_reuse=False)
    assert placed.choice is Choice.EXACT_PREFIX


def test_small_gains_are_left_to_the_router():
    placed = choose(8192, Found(holdings=(holding("b", 100),)), workers(a=0, b=0), COST)
    assert placed.choice is Choice.ROUTER
    assert "needed" in placed.reason


def test_a_donor_is_fetched_only_where_that_beats_computing_it():
    shared = SharedDonor(donor_key=9, covered_tokens=8000, token_count=8000)
    fast = FleetCost(transfer_bytes_per_s=20e9)
    slow = FleetCost(transfer_bytes_per_s=0.2e9)
    found = Found(shared=shared)
    placed = choose(8192, found, workers(a=0), fast, can_transfer=True)
    assert placed.choice is Choice.TRANSFER
    assert placed.option.donor_key == 9
    assert choose(8192, found, workers(a=0), slow, can_transfer=True).choice is Choice.ROUTER
    assert choose(8192, found, workers(a=0), fast).choice is Choice.ROUTER


def test_the_sick_are_never_chosen():
    found = Found(holdings=(holding("b", 8000),))
    sick = [WorkerLoad(worker_id="a"), WorkerLoad(worker_id="b", healthy=False)]
    placed = choose(8192, found, sick, COST)
    assert placed.option.worker_id == "a"
    nobody = choose(8192, found, [WorkerLoad(worker_id="a", healthy=False)], COST)
    assert nobody.option is None
    assert nobody.choice is Choice.ROUTER


def test_the_routers_own_choice_is_what_is_to_be_beaten():
    found = Found(holdings=(holding("b", 6000),))
    placed = choose(8192, found, workers(a=50_000, b=0), COST, router_worker=("a", 0))
    assert placed.router.worker_id == "a"
    assert placed.pinned.worker_id == "b"


def test_every_choice_is_explained_with_all_its_options():
    placed = choose(8192, Found(holdings=(holding("b", 6000, 512),)), workers(a=0, b=0), COST)
    text = placed.explain()
    assert "gains" in text
    for option in placed.options:
        assert option.explain() in text
    assert "queue" in text
    assert "prefill" in text


def test_more_coverage_never_makes_a_prefill_longer():
    times = [COST.prefill_s(8192, 0, covered) for covered in range(0, 8193, 512)]
    assert times == sorted(times, reverse=True)
    assert COST.prefill_s(8192, 4096, 4096) < COST.prefill_s(8192, 0, 0)


def test_impossible_costs_are_refused():
    with pytest.raises(SettingsError, match="seconds_per_token"):
        FleetCost(seconds_per_token=0)
    with pytest.raises(SettingsError, match="reuse_share"):
        FleetCost(reuse_share=2)
