"""Scores against independent definitions of the same thing."""

from __future__ import annotations

import difflib
import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench import quality

words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=7)


def brute_force_lcs(left: list[str], right: list[str]) -> int:
    """The longest subsequence of `left` that is one of `right`, by trying all of them."""

    def is_subsequence(candidate: tuple[str, ...]) -> bool:
        rest = iter(right)
        return all(word in rest for word in candidate)

    for size in range(len(left), 0, -1):
        if any(is_subsequence(candidate) for candidate in combinations(left, size)):
            return size
    return 0


@given(words, words)
def test_rouge_l_equals_trying_all_subsequences(left: list[str], right: list[str]) -> None:
    total = len(left) + len(right)
    expected = 2 * brute_force_lcs(left, right) / total if total else 1.0
    assert quality.rouge_l(" ".join(left), " ".join(right)) == pytest.approx(expected)


@given(words, words)
def test_rouge_l_is_symmetric_bounded_and_one_only_for_equal_texts(
    left: list[str], right: list[str]
) -> None:
    first, second = " ".join(left), " ".join(right)
    score = quality.rouge_l(first, second)
    assert score == pytest.approx(quality.rouge_l(second, first))
    assert 0.0 <= score <= 1.0
    assert (score == 1.0) == (left == right)


@given(words)
def test_a_text_has_full_scores_against_itself(text: list[str]) -> None:
    # difflib's ratio is an independent measure of likeness: 1 for equal texts.
    assert difflib.SequenceMatcher(None, text, text).ratio() == 1.0
    assert quality.rouge_l(" ".join(text), " ".join(text)) == 1.0


def test_recall_forgives_endings_order_and_case_and_nothing_else() -> None:
    assert quality.answer_recall("They were WALKING to Cities.", ["the city walks"]) == 0.5
    assert quality.answer_recall("He stopped walking", ["walked"]) == 1.0
    assert quality.answer_recall("Locker ZX-5516.", ["ZX-5516"]) == 1.0
    assert quality.answer_recall("Locker ZX-5517.", ["ZX-5516"]) == 0.5
    assert quality.answer_recall("nothing of it", ["alpha beta"]) == 0.0


def test_the_best_of_several_answers_counts() -> None:
    assert quality.answer_recall("blue", ["deep red", "blue"]) == 1.0
    assert quality.token_f1("blue", ["deep red", "blue"]) == 1.0


@pytest.mark.parametrize("answers", [[], ["the"], [""]])
def test_nothing_to_compare_with_is_no_score(answers: list[str]) -> None:
    assert quality.answer_recall("anything", answers) is None


def test_token_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    # said {red, big, house}, expected {big, house, tree}: two of three both ways.
    assert quality.token_f1("The red big house!", ["a big house tree"]) == pytest.approx(2 / 3)
    # said four words, two of them expected; expected two words: p = 1/2, r = 1.
    assert quality.token_f1("x y big house", ["big house"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("output", "leaks"),
    [
        ("The code is JV-6384.", True),
        ("The code is ZX-5516.", False),
        ("Not JV-6384 but ZX-5516.", False),
        ("JV-63841", False),
        ("", False),
    ],
)
def test_a_leak_is_the_donors_value_without_the_own_one(output: str, leaks: bool) -> None:
    assert quality.leaks_donor_fact(output, ["ZX-5516"], "JV-6384") is leaks


def test_kl_of_equal_lists_is_zero_and_of_disjoint_ones_is_what_the_rule_gives() -> None:
    cold = {"a": math.log(0.7), "b": math.log(0.3)}
    assert quality.kl_top_k(cold, dict(cold)) == 0.0
    # Disjoint one-token lists: each side gives the other's token its own logprob less one.
    heavy, light = 1 / (1 + math.exp(-1)), math.exp(-1) / (1 + math.exp(-1))
    expected = heavy * math.log(heavy / light) + light * math.log(light / heavy)
    assert quality.kl_top_k({"a": -0.5}, {"b": -0.1}) == pytest.approx(expected)


logprobs = st.dictionaries(st.sampled_from("abcdef"), st.floats(-8.0, 0.0), min_size=1, max_size=5)


@given(logprobs, logprobs)
def test_kl_is_never_negative(cold: dict[str, float], warm: dict[str, float]) -> None:
    assert quality.kl_top_k(cold, warm) >= 0.0


def test_kl_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        quality.kl_top_k({}, {"a": 0.0})
