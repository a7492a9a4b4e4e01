"""Offline runs: honest about who knows which donors, and about planners that fail or lie."""

import dataclasses
import itertools
from typing import ClassVar

import pytest

from sembench.errors import PlannerError, UsageError
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.spec import BuildSpec
from sembench.metrics import ProposedSpan, aggregate, by_transform
from sembench.offline import OfflineRun
from sembench.planners import PlannerSettings, make_planner
from sembench.tokenizers import load_tokenizer
from sembench.transforms import TRANSFORMS, Reuse

SPEC = BuildSpec(name="t", profile="synthetic-v1", max_items_per_dataset=1)
ITEMS = list(build_items(SPEC, source_for(SPEC), BuildReport()))
WORDS = load_tokenizer(None)


class Recorder:
    """Proposes nothing and remembers what it was told."""

    made: ClassVar[list] = []

    def __init__(self, settings=None):
        self.known, self.seen, self.peak = set(), [], 0
        Recorder.made.append(self)

    def register(self, donor):
        self.known.add(donor.donor_id)
        self.peak = max(self.peak, len(self.known))

    def forget(self, donor_id):
        self.known.discard(donor_id)

    def plan(self, request):
        self.seen.append((request.request_id, frozenset(self.known)))
        return []

    def describe(self):
        return {"name": "recorder"}


@pytest.fixture(autouse=True)
def _clean():
    Recorder.made = []


def rows(planner="oracle", block_size=16, items=ITEMS, **changes):
    make = planner
    if isinstance(planner, str):
        settings = PlannerSettings(block_size=block_size, tokenizer=WORDS.name)

        def make():
            return make_planner(planner, settings)

    run = OfflineRun(tokenizer=WORDS, block_size=block_size, make_planner=make, **changes)
    return list(run.rows(items))


@pytest.mark.parametrize("planner", ["semblend", "oracle"])
def test_lift_is_where_it_was_promised_and_nowhere_else(planner):
    for name, figures in by_transform(rows(planner)).items():
        lift, reuse = figures["semantic_eligible_lift"], TRANSFORMS[name].reuse
        if reuse is Reuse.SEMANTIC:
            assert lift > 0.1, name
        else:
            assert lift == pytest.approx(0.0, abs=0.02), name
        if reuse is Reuse.NONE:
            assert figures["semantic_candidate_blocks"] == 0
            assert figures["exact_blocks"] == 0


def test_the_floor_has_no_lift():
    assert aggregate(rows("exact-block"))["semantic_eligible_lift"] == 0.0


@pytest.mark.parametrize("block_size", [1, 7, 16, 64, 100_000])
def test_any_block_size_works_and_adds_up(block_size):
    for row in rows("oracle", block_size=block_size, items=ITEMS[:14]):
        assert row.total_blocks == row.prompt_tokens // block_size == len(row.block_strip)
        assert row.exact_blocks <= row.semantic_eligible_blocks <= row.semantic_candidate_blocks
        assert row.semantic_candidate_blocks <= row.total_blocks


def test_without_a_planner_only_the_exact_question_is_answered():
    for row in rows(None, items=ITEMS[:3]):
        assert row.semantic_eligible_blocks is row.semantic_eligible_lift is row.plan_ms is None
        assert row.exact_block_hit_rate is not None


def test_a_planner_sees_the_items_own_donors_and_no_others():
    rows(Recorder)
    (planner,) = Recorder.made
    for (request_id, known), item in zip(planner.seen, ITEMS, strict=True):
        assert request_id == item.item_id
        assert known == {donor.donor_id for donor in item.donor_prompts}
    assert not planner.known


def test_shared_donors_stay_up_to_their_number_and_negative_controls_stay_alone():
    rows(Recorder, shared_donors=5)
    shared, alone = Recorder.made
    negative = {item.item_id for item in ITEMS if item.negative_control}
    assert {request_id for request_id, _ in alone.seen} == negative
    assert all(len(known) == 1 for _, known in alone.seen)
    assert len(shared.known) == 5
    largest = max(len(item.donor_prompts) for item in ITEMS)
    assert shared.peak <= 5 + largest


def test_shared_donors_count_for_the_exact_cache_too():
    repeat = next(item for item in ITEMS if item.transform == "exact_repeat")
    second = dataclasses.replace(
        repeat,
        item_id="second",
        donor_prompts=(
            dataclasses.replace(repeat.donor_prompts[0], donor_id="x", text="nothing to share"),
        ),
    )
    alone = rows("exact-block", items=[repeat, second])
    shared = rows("exact-block", items=[repeat, second], shared_donors=1)
    assert [row.exact_block_hit_rate for row in alone] == [1.0, 0.0]
    assert [row.exact_block_hit_rate for row in shared] == [1.0, 1.0]
    assert shared[1].semantic_eligible_lift == 0.0


class Failing(Recorder):
    def plan(self, request):
        raise RuntimeError("out of luck")


def test_a_planner_that_fails_has_planned_nothing_and_says_why():
    figures = aggregate(rows(Failing, items=ITEMS[:3]))
    assert figures["errors"] == 3
    assert figures["semantic_eligible_block_rate"] is None
    assert rows(Failing, items=ITEMS[:1])[0].error == "RuntimeError: out of luck"


class Clinging(Recorder):
    def forget(self, donor_id):
        raise RuntimeError("cannot")


def test_a_planner_that_cannot_forget_ends_the_run():
    with pytest.raises(PlannerError, match="cannot forget donor"):
        rows(Clinging, items=ITEMS[:3])


class Boasting(Recorder):
    def plan(self, request):
        length = len(request.tokens)
        return [
            ProposedSpan(donor_id=donor_id, donor_start=0, target_start=0, length=length)
            for donor_id in sorted(self.known)
        ]


class Lying(Recorder):
    def plan(self, request):
        return [
            ProposedSpan(donor_id=donor_id, donor_start=0, target_start=0, length=64)
            for donor_id in sorted(self.known)
        ]


def test_a_planner_that_proposes_what_is_not_there_is_caught():
    control = [item for item in ITEMS if item.negative_control][:1]
    (boast,) = rows(Boasting, items=control)
    assert boast.error is not None or boast.planned_mismatched_tokens > 0
    (lie,) = rows(Lying, items=control)
    assert lie.planned_mismatched_tokens > 50
    assert aggregate([lie])["negative_control_semantic_eligible_rate"] > 0


def test_rows_carry_what_the_manifest_expects():
    by_name = {row.transform: row for row in rows("oracle", items=ITEMS[:14])}
    assert by_name["exact_repeat"].expected_exact is True
    assert by_name["rag_reorder"].expected_semantic is True
    assert by_name["fact_divergent_paraphrase"].expected_no_fact_leak is True
    assert by_name["negative_control"].negative_control is True


@pytest.mark.parametrize(
    ("change", "named"), [({"block_size": 0}, "--block-size"), ({"shared_donors": -1}, "--shared")]
)
def test_wrong_flags_are_named(change, named):
    with pytest.raises(UsageError, match=named):
        OfflineRun(**{"tokenizer": WORDS, "block_size": 16} | change)


def test_items_are_read_as_they_are_measured():
    pulled = []

    def items():
        for item in ITEMS:
            pulled.append(item.item_id)
            yield item

    run = OfflineRun(tokenizer=WORDS, block_size=16)
    assert len(list(itertools.islice(run.rows(items()), 2))) == 2
    assert len(pulled) == 2
