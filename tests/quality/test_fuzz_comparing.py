"""The fuzz of engines can fail: near ties pass, tokens out of the question do not."""

from __future__ import annotations

import pytest
from benchmarks.engine_fuzz.comparing import Answer, Comparison

LIKELY = {5: -0.7, 6: -0.75, 7: -4.0}


def reference(*tokens):
    return Answer(tokens=tokens, likely=tuple({**LIKELY, token: -0.7} for token in tokens))


def test_the_same_answer_has_no_difference():
    assert Comparison(margin=0.1).difference((5, 5, 5), reference(5, 5, 5)) is None


def test_an_answer_that_was_cut_off_is_held_to_what_there_is_of_it():
    assert Comparison(margin=0.1).difference((5,), reference(5, 5, 5)) is None


@pytest.mark.parametrize("token", [7, 8], ids=["unlikely", "not among the likely ones"])
def test_a_token_out_of_the_question_is_wrong(token):
    found = Comparison(margin=0.1).difference((5, token, 5), reference(5, 5, 5))
    assert found is not None
    assert (found.place, found.got, found.expected) == (1, token, 5)


def test_a_near_tie_passes_and_is_counted():
    comparison = Comparison(margin=0.1)
    assert comparison.difference((5, 6), reference(5, 5)) is None
    assert comparison.near_ties == 1
    assert comparison.largest_tie == pytest.approx(0.05)


def test_a_near_tie_beyond_the_margin_does_not_pass():
    assert Comparison(margin=0.01).difference((5, 6), reference(5, 5)) is not None


def test_what_follows_a_near_tie_is_held_to_a_reference_that_goes_on_from_it():
    asked = []

    def go_on(said):
        asked.append(said)
        return reference(5, 5)

    comparison = Comparison(margin=0.1)
    assert comparison.difference((5, 6, 5, 5), reference(5, 5, 6, 6), go_on) is None
    found = comparison.difference((5, 6, 5, 8), reference(5, 5, 6, 6), go_on)
    assert found is not None
    assert found.place == 3
    assert asked == [(5, 6), (5, 6)]
