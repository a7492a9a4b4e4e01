"""Tables that people read, and the test that more recompute does no harm."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from semblend.quality.breakdown import by_length, by_workload, candidates, item_share
from semblend.quality.breakdown import near_duplicates as near
from semblend.quality.figures import figures_of
from semblend.quality.monotone import sign_test, steps
from tests.quality.test_figures import GOOD, WRONG, rows

CHEAP, DEAR = "span_head(4)", "span_head(8)"


def ladder(cheap, dear):
    """Records of two policies of one family, with their prices."""
    return [
        *(replace(r, recomputed_tokens=0) for r in rows([WRONG] * len(cheap), policy="none")),
        *(replace(r, recomputed_tokens=9) for r in rows(cheap, policy=CHEAP)),
        *(replace(r, recomputed_tokens=90) for r in rows(dear, policy=DEAR)),
    ]


def test_a_policy_that_gets_worse_as_it_recomputes_more_is_found():
    found = steps(ladder([GOOD] * 100, [WRONG] * 20 + [GOOD] * 80))
    (bad,) = [step for step in found if step.falls]
    assert (bad.cheap, bad.dear, bad.lost, bad.won) == (CHEAP, DEAR, 20, 0)


def test_chance_is_no_fall_and_a_gain_neither():
    mixed = [WRONG, GOOD] * 10 + [GOOD] * 80
    assert not any(step.falls for step in steps(ladder(mixed, [*mixed[1:], GOOD])))
    assert not any(step.falls for step in steps(ladder([WRONG] * 100, [GOOD] * 100)))


def test_random_is_not_asked_to_be_monotone():
    records = [
        *rows([GOOD] * 100, policy="random(0.1)"),
        *rows([WRONG] * 100, policy="random(0.2)"),
    ]
    assert steps(records) == []


@given(lost=st.integers(0, 30), won=st.integers(0, 30))
def test_the_sign_test_counts_coins(lost, won):
    p = sign_test(lost, won)
    assert 0 < p <= 1
    both = p + sign_test(won, lost)
    assert both >= 1  # the tails overlap in the middle
    assert sign_test(lost + 1, won) < p or lost + won == 0


def edited(count, *, policy, **changes):
    return rows([replace(GOOD, **changes)] * count, policy=policy, workload="edited", kind="order")


def test_near_duplicates_stand_beside_naive_and_show_the_dearest_item():
    records = [
        *edited(3, policy="none", edits=20, depth="head", leaked=True, right=False),
        *edited(2, policy=DEAR, edits=20, depth="head"),
        *edited(3, policy=DEAR, edits=20, depth="head", recomputed_tokens=180)[2:],
    ]
    table = near(records, DEAR)
    at = {name: number for number, name in enumerate(table.headings)}
    dense = {row[0]: row for row in table.rows}["1K with 12 to 20 edits"]
    assert dense[at["items"]] == "3"
    assert dense[at["naive"]] == "0.0"
    assert dense[at["to donor's: naive / policy"]] == "3 / 0"
    assert dense[at["recomputed"]] == "13.3"
    assert dense[at["most of an item"]] == "20.0"
    assert item_share(replace(GOOD, declined_tokens=900)) == 0.0


def test_every_workload_and_length_has_its_row():
    records = [*rows([GOOD] * 4, policy="none"), *rows([GOOD] * 4, policy=DEAR)]
    assert [row[0] for row in by_length(records, DEAR).rows] == ["instruction, 1K"]
    (row,) = by_workload(figures_of(records), DEAR).rows
    assert row[:4] == ("instruction", "4", "100.0", "100.0")
    (line,) = candidates(figures_of(records), {"none": "none", "A": DEAR, "B": "all"}).rows
    assert line[0] == "instruction"
    assert line[3] == "–"
    assert line[2].startswith("100.0, same 100.0 (")
