"""Scores against plain oracles, intervals that cover, a bound that cannot be talked round."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.quality.bound import Bound, choose, judge
from semblend.quality.figures import figures_of, noise_floor
from semblend.quality.intervals import bootstrap_mean, paired_loss, wilson
from semblend.quality.measure import Record
from semblend.quality.reports.svg import Chart, Series, draw
from semblend.quality.scores import divergence, rouge_l, token_f1

words = st.lists(st.sampled_from("abcd"), max_size=7)


def longest_common(one, two):
    if not one or not two:
        return 0
    if one[0] == two[0]:
        return 1 + longest_common(one[1:], two[1:])
    return max(longest_common(one[1:], two), longest_common(one, two[1:]))


@given(words, words)
def test_rouge_l_is_the_longest_common_subsequence(one, two):
    score = rouge_l(" ".join(one), " ".join(two))
    if one and two:
        common = longest_common(tuple(one), tuple(two))
        assert score == pytest.approx(2 * common / (len(one) + len(two)))
    assert score == pytest.approx(rouge_l(" ".join(two), " ".join(one)))


@given(words, words)
def test_f1_is_symmetric_and_one_only_for_the_same_words(one, two):
    score = token_f1(" ".join(one), " ".join(two))
    assert score == pytest.approx(token_f1(" ".join(two), " ".join(one)))
    assert (score == 1.0) == (sorted(one) == sorted(two))


def test_divergence_is_zero_for_the_same_and_kl_for_others():
    cold = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    forced = torch.tensor([2, 0])
    same = divergence(cold, cold.clone(), forced)
    assert (same.kl, same.top1) == (0.0, 1.0)
    warm = torch.tensor([[2.0, 1.0, 0.0], [3.0, 0.0, 0.0]])
    other = divergence(cold, warm, forced)
    p, q = torch.softmax(cold[0].double(), 0), torch.softmax(warm[0].double(), 0)
    assert other.kl_worst == pytest.approx(float((p * (p / q).log()).sum()))
    assert other.kl == pytest.approx(other.kl_worst / 2)
    assert other.top1 == 0.5


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    hits = rng.binomial(200, 0.95, size=400)
    covered = sum(low <= 0.95 <= high for low, high in (wilson(int(n), 200) for n in hits))
    assert covered >= 0.92 * 400
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = bootstrap_mean(rng.normal(3.0, 1.0, 500).tolist())
    assert low < 3.05
    assert high > 2.95


def test_a_paired_loss_has_tangos_interval():
    """His published example, symmetry, and coverage where losses are rare."""
    assert paired_loss(12, 2, 50) == pytest.approx((0.0611, 0.3447), abs=1e-4)
    low, high = paired_loss(2, 5, 300)
    assert (-high, -low) == pytest.approx(paired_loss(5, 2, 300))
    assert paired_loss(0, 0, 0) == (-1.0, 1.0)
    drawn = np.random.default_rng(0).multinomial(400, (0.01, 0.02, 0.97), size=400)
    ends = [paired_loss(int(lost), int(won), 400) for lost, won, _ in drawn]
    assert sum(low <= -0.01 <= high for low, high in ends) >= 0.92 * 400


GOOD = Record(
    case_id="instruction/instruction/0",
    workload="instruction",
    kind="instruction",
    policy="span_head(8)",
    depth="",
    edits=0,
    prompt_tokens=1000,
    reusable_tokens=900,
    behind_edit_tokens=0,
    recomputed_tokens=90,
    declined_tokens=0,
    probe_tokens=0.0,
    answer="1",
    cold_answer="1",
    expected="1",
    right=True,
    cold_right=True,
    same=True,
    leaked=False,
    cold_leaked=False,
    f1=1.0,
    rouge_l=1.0,
    kl=1e-4,
    kl_worst=1e-4,
    top1=1.0,
    nll=0.1,
    cold_nll=0.1,
)
WRONG = replace(GOOD, answer="2", right=False, same=False, f1=0.0, rouge_l=0.0)


def rows(records, policy="span_head(8)", workload="instruction", kind="instruction"):
    return [
        replace(r, case_id=f"{workload}/{kind}/{n}", policy=policy, workload=workload, kind=kind)
        for n, r in enumerate(records)
    ]


def judged(records):
    (found,) = judge(figures_of(records), Bound(), noise_kl=1e-10)
    return found.objections


def test_a_policy_as_good_as_cold_keeps_the_bound():
    assert judged(rows([GOOD] * 200)) == ()


def test_one_per_cent_of_200_items_is_two_answers_on_balance_in_every_workload():
    assert judged(rows([GOOD] * 198 + [WRONG] * 2)) == ()
    (said,) = judged(rows([GOOD] * 197 + [WRONG] * 3))
    assert "answers fall by 0.015" in said
    won = replace(GOOD, cold_right=False, cold_answer="2", same=False)
    assert judged(rows([GOOD] * 196 + [WRONG] * 3 + [won])) == ()
    # A workload that falls is not made good by others.
    fine = rows([GOOD] * 1000, workload="composed", kind="composed")
    assert len(judged([*rows([GOOD] * 197 + [WRONG] * 3), *fine])) == 1


def test_each_limit_of_the_bound_is_enforced():
    assert "199 items, at least 200" in judged(rows([GOOD] * 199))[0]
    assert judged(rows([GOOD] * 20, workload="reading", kind="squad")) == ()
    assert "KL" in judged(rows([replace(GOOD, kl=0.5)] * 200))[0]
    assert "recomputed" in judged(rows([replace(GOOD, recomputed_tokens=400)] * 200))[0]
    leak = replace(GOOD, leaked=True)
    control = rows([GOOD] * 999 + [leak], workload="control", kind="negation")
    assert "1 answers towards the donor's" in judged(control)[0]


def test_what_cold_says_itself_is_no_leak_of_reuse():
    both = replace(GOOD, leaked=True, cold_leaked=True)
    assert judged(rows([both] * 200, workload="control", kind="negation")) == ()


SMALL = Bound(items=10)


def test_the_cheapest_inside_the_bound_is_chosen_and_partial_policies_are_not():
    dear = rows([replace(GOOD, recomputed_tokens=150)] * 10, policy="span_head(16)")
    cheap = rows([GOOD] * 10)
    bad = rows([WRONG] * 10, policy="none")
    elsewhere = rows([GOOD] * 10, workload="composed", kind="composed")
    records = [*dear, *cheap, *bad]
    assert choose(judge(figures_of(records), SMALL, noise_kl=0)).policy == "span_head(8)"
    records += [replace(r, policy="span_head(16)") for r in elsewhere]
    # span_head(8) was not measured on compositions: it is no candidate any more.
    assert choose(judge(figures_of(records), SMALL, noise_kl=0)).policy == "span_head(16)"
    assert choose(judge(figures_of(bad), SMALL, noise_kl=0)) is None


def test_figures_add_up():
    (row,) = figures_of(rows([GOOD, WRONG, replace(GOOD, nll=0.2)]))
    assert (row.items, row.right, row.same) == (3, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert row.difference == pytest.approx(-1 / 3)
    assert row.recompute == pytest.approx(0.1)
    assert row.perplexity_ratio == pytest.approx(math.exp(0.1 / 3))
    assert noise_floor([])["kl_p99"] == 0.0


def test_charts_are_svg_and_escape_names():
    chart = Chart(
        title="a < b",
        x="x",
        y="y",
        series=(Series(name="<s>", points=((0, 0.1), (1, 0.2)), intervals=((0, 1), (0, 1))),),
        line=0.5,
    )
    assert draw(chart).startswith("<svg")
    assert "&lt;s&gt;" in draw(chart)
    assert "a &lt; b" in draw(chart)
    assert draw(replace(chart, log_y=True, line=None)).endswith("</svg>")
    assert draw(replace(chart, series=())) == ""
