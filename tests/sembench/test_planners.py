"""Planners: the oracle is the ceiling, exact-block the floor, adapters are checked at the door."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench.errors import PlannerError
from sembench.metrics import ProposedSpan, exact_block_mask, plan_blocks
from sembench.planners import BUILT_IN, PlannerDonor, PlannerRequest, PlannerSettings, make_planner

tokens = st.lists(st.integers(0, 2), max_size=36).map(lambda x: np.array(x, dtype=np.uint32))
donor_lists = st.lists(tokens, max_size=3)
sizes = st.integers(1, 6)


def planner_with(name, donors, size):
    planner = make_planner(name, PlannerSettings(block_size=size, tokenizer="t"))
    for donor_id, donor in donors.items():
        planner.register(PlannerDonor(donor_id=donor_id, tokens=donor, text=""))
    return planner


def plan(name, recipient, donors, size):
    planner = planner_with(name, donors, size)
    return planner.plan(PlannerRequest(request_id="r", tokens=recipient, text=""))


def named(donors):
    return {f"d{index}": donor for index, donor in enumerate(donors)}


def holds(donor, run):
    return any(
        donor[start : start + len(run)].tolist() == run.tolist()
        for start in range(len(donor) - len(run) + 1)
    )


@given(tokens, donor_lists, sizes)
def test_the_oracle_has_every_block_that_stands_in_a_donor(recipient, pool, size):
    donors = named(pool)
    blocks = plan_blocks(recipient, donors, plan("oracle", recipient, donors, size), size)
    expected = [
        any(holds(donor, recipient[start : start + size]) for donor in pool)
        for start in range(0, len(recipient) - size + 1, size)
    ]
    assert blocks.eligible.tolist() == expected
    assert blocks.mismatched_tokens == 0


@given(tokens, donor_lists, sizes)
def test_the_oracle_covers_every_position_of_a_run_as_long_as_a_block(recipient, pool, size):
    donors = named(pool)
    covered = np.zeros(len(recipient), dtype=int)
    for span in plan("oracle", recipient, donors, size):
        covered[span.target_start : span.target_start + span.length] += 1
    expected = np.zeros(len(recipient), dtype=int)
    for start in range(len(recipient) - size + 1):
        if any(holds(donor, recipient[start : start + size]) for donor in pool):
            expected[start : start + size] = 1
    assert covered.tolist() == expected.tolist(), "covered once, and no more than there is"


@st.composite
def truthful_proposal(draw):
    recipient, pool = draw(tokens), draw(donor_lists)
    runs = [
        ProposedSpan(donor_id=f"d{number}", donor_start=there, target_start=here, length=length)
        for number, donor in enumerate(pool)
        for there in range(len(donor))
        for here in range(len(recipient))
        for length in range(1, min(len(donor) - there, len(recipient) - here, 12) + 1)
        if donor[there : there + length].tolist() == recipient[here : here + length].tolist()
    ]
    chosen = draw(st.lists(st.sampled_from(runs), max_size=6)) if runs else []
    return recipient, named(pool), chosen


@given(truthful_proposal(), sizes)
@settings(max_examples=60, deadline=None)
def test_no_truthful_planner_has_more_eligible_blocks_than_the_oracle(proposal, size):
    recipient, donors, spans = proposal
    theirs = plan_blocks(recipient, donors, spans, size)
    ceiling = plan_blocks(recipient, donors, plan("oracle", recipient, donors, size), size)
    assert theirs.mismatched_tokens == 0
    assert not (theirs.eligible & ~ceiling.eligible).any()


@given(tokens, donor_lists, sizes)
def test_exact_block_finds_what_exact_caches_find(recipient, pool, size):
    donors = named(pool)
    blocks = plan_blocks(recipient, donors, plan("exact-block", recipient, donors, size), size)
    assert blocks.eligible.tolist() == exact_block_mask(recipient, pool, size).tolist()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_forgotten_donor_is_not_proposed(name):
    donor = np.arange(100, 400, dtype=np.uint32)
    other = np.concatenate([np.arange(5), donor]).astype(np.uint32)
    recipient = np.concatenate([np.arange(16), donor]).astype(np.uint32)
    planner = planner_with(name, {"gone": donor, "kept": other}, 16)
    planner.forget("gone")
    spans = planner.plan(PlannerRequest(request_id="r", tokens=recipient, text=""))
    assert {span.donor_id for span in spans} <= {"kept"}
    planner.forget("kept")
    planner.forget("never registered")
    assert not planner.plan(PlannerRequest(request_id="r", tokens=recipient, text=""))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_planners_name_themselves(name):
    assert planner_with(name, {}, 16).describe()["name"] == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("best", "neither one of"),
        ("no.such.module:Planner", "cannot be loaded"),
        ("sembench.ids:Planner", "cannot be loaded"),
        ("sembench.ids:stable_id", "has no method 'register'"),
    ],
)
def test_a_planner_that_is_none_is_refused(name, reason):
    with pytest.raises(PlannerError, match=reason):
        make_planner(name, PlannerSettings(block_size=16, tokenizer="t"))


def semblend(**options):
    return make_planner("semblend", PlannerSettings(block_size=16, tokenizer="t", options=options))


def test_semblend_takes_its_flags_and_names_wrong_ones():
    settings_ = semblend(semblend_min_reuse_ratio=0.5, min_span_tokens="48").describe()["settings"]
    assert settings_["min_reuse_ratio"] == 0.5
    assert settings_["min_span_tokens"] == 48
    assert "namespace_secret" not in settings_
    with pytest.raises(PlannerError, match="unknown setting 'min_spam_tokens'"):
        semblend(min_spam_tokens="1")


def test_semblend_proposes_nothing_below_the_asked_reuse_ratio():
    shared = np.arange(1000, 1064, dtype=np.uint32)
    recipient = np.concatenate([np.arange(936), shared]).astype(np.uint32)
    request = PlannerRequest(request_id="r", tokens=recipient, text="")
    for ratio, proposes in ((0.0, True), (0.25, False)):
        planner = semblend(semblend_min_reuse_ratio=ratio)
        donor = np.concatenate([np.arange(7000, 7500), shared]).astype(np.uint32)
        planner.register(PlannerDonor(donor_id="d", tokens=donor, text=""))
        assert bool(planner.plan(request)) is proposes


def test_disabling_multi_donor_leaves_one_donor():
    first, second = (np.arange(at, at + 300, dtype=np.uint32) for at in (1000, 5000))
    recipient = np.concatenate([np.arange(40), first, np.arange(50, 90), second[:200]])
    request = PlannerRequest(request_id="r", tokens=recipient.astype(np.uint32), text="")
    for disabled, expected in ((False, {"first", "second"}), (True, {"first"})):
        planner = semblend(disable_multi_donor=disabled)
        for donor_id, donor in (("first", first), ("second", second)):
            planner.register(PlannerDonor(donor_id=donor_id, tokens=donor, text=""))
        assert {span.donor_id for span in planner.plan(request)} == expected


def test_semblend_asks_meaning_where_fuzzy_chunks_are_on():
    shared = np.arange(1000, 1400, dtype=np.uint32)
    planner = semblend(fuzzy_chunks="true", semblend_embedder="jaccard")
    planner.register(PlannerDonor(donor_id="d", tokens=shared, text="some words about harbours"))
    recipient = np.concatenate([np.arange(40), shared]).astype(np.uint32)
    text = "some words about harbours too"
    spans = planner.plan(PlannerRequest(request_id="r", tokens=recipient, text=text))
    assert {span.donor_id for span in spans} == {"d"}
