"""Every transform keeps its promise, and notices items that break it."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench.errors import TransformError
from sembench.metrics import exact_block_mask
from sembench.model import ManifestItem
from sembench.planners import PlannerDonor, PlannerRequest, PlannerSettings, make_planner
from sembench.profiles import SourceRecord
from sembench.texts import word_ids
from sembench.transforms import TRANSFORMS, Reuse, Toolbox
from tests.sembench.records import any_record, companions, record

COMPANIONS = companions()
ALL = sorted(TRANSFORMS)
SEMANTIC = [name for name in ALL if TRANSFORMS[name].reuse is Reuse.SEMANTIC]
NO_QUESTION = SourceRecord(dataset="d", source_id="s", context=record(0).context)


def apply(name, source, seed=0):
    tools = Toolbox(random=Random(seed), companions=COMPANIONS, profile="test")
    return TRANSFORMS[name].apply(source, tools)


@pytest.mark.parametrize("name", ALL)
@given(source=any_record, seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_an_item_does_what_its_transform_says(name, source, seed):
    item = apply(name, source, seed)
    TRANSFORMS[name].check(item)
    assert item.transform == name
    assert ManifestItem.from_line(item.to_line()) == item
    assert apply(name, source, seed) == item, "the same choices give the same item"


@pytest.mark.parametrize("name", ALL)
def test_a_negative_control_is_one_exactly_where_nothing_can_be_reused(name):
    item = apply(name, record(1))
    transform = TRANSFORMS[name]
    assert item.negative_control == (transform.reuse is Reuse.NONE)
    assert item.metadata["expected_semantic"] == (transform.reuse is Reuse.SEMANTIC)
    assert item.metadata["expected_exact"] == (transform.reuse is Reuse.EXACT)


@pytest.mark.parametrize("name", ALL)
def test_another_document_as_recipient_is_noticed(name):
    item = apply(name, record(1))
    if name == "negative_control":
        broken = replace(item, recipient_prompt=item.donor_prompts[0].text)
    else:
        other = apply("negative_control", record(2, dataset="synthetic_archive"))
        broken = replace(item, recipient_prompt=other.recipient_prompt)
    with pytest.raises(TransformError, match=rf"^{name}: "):
        TRANSFORMS[name].check(broken)


@pytest.mark.parametrize("name", ALL)
def test_an_item_without_donors_or_with_a_false_flag_is_noticed(name):
    item = apply(name, record(1))
    with pytest.raises(TransformError, match="no donor"):
        TRANSFORMS[name].check(replace(item, donor_prompts=()))
    with pytest.raises(TransformError, match="negative_control is"):
        TRANSFORMS[name].check(replace(item, negative_control=not item.negative_control))


@pytest.mark.parametrize("name", SEMANTIC)
def test_a_repeat_under_another_name_is_noticed(name):
    item = apply(name, record(1))
    donors = (replace(item.donor_prompts[0], text=item.recipient_prompt), *item.donor_prompts[1:])
    with pytest.raises(TransformError):
        TRANSFORMS[name].check(replace(item, donor_prompts=donors))


@pytest.mark.parametrize("name", SEMANTIC)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_semantic_items_hold_reuse_that_exact_blocks_miss(name, block_size):
    exact = eligible = 0
    for index in range(3):
        item = apply(name, record(index), seed=index)
        recipient = word_ids(item.recipient_prompt)
        donors = {donor.donor_id: word_ids(donor.text) for donor in item.donor_prompts}
        exact += int(exact_block_mask(recipient, donors.values(), block_size).sum())
        planner = make_planner("oracle", PlannerSettings(block_size=block_size, tokenizer="words"))
        for donor_id, tokens in donors.items():
            planner.register(PlannerDonor(donor_id=donor_id, tokens=tokens, text=""))
        spans = planner.plan(PlannerRequest(request_id="r", tokens=recipient, text=""))
        eligible += sum(
            span.length // block_size for span in spans if span.target_start % block_size == 0
        )
    assert eligible > exact


@pytest.mark.parametrize("name", ALL)
def test_answers_can_be_found_in_the_recipient(name):
    for index in range(6):
        item = apply(name, record(index), seed=index)
        assert any(answer in item.recipient_prompt for answer in item.answers)


@pytest.mark.parametrize("name", ["entity_swap_control", "fact_divergent_paraphrase"])
def test_adversarial_items_say_what_would_be_a_leak(name):
    item = apply(name, record(3))
    leak = item.metadata["divergent_donor_value"]
    assert item.metadata["expected_no_fact_leak"] is True
    assert leak in item.donor_prompts[0].text
    assert leak not in item.recipient_prompt
    assert leak not in item.answers


def test_entity_swap_takes_the_answer_where_the_document_holds_it():
    item = apply("entity_swap_control", record(3))
    assert item.metadata["entity_swap"]["entity"] == record(3).answers[0]


def test_composites_have_a_donor_for_each_segment():
    item = apply("multi_donor_composite", record(1))
    assert len(item.donor_prompts) == item.metadata["segment_count"] == 4
    assert {donor.label for donor in item.donor_prompts} == {"segment_donor"}
    assert len({donor.donor_id for donor in item.donor_prompts}) == 4


def test_negative_controls_come_from_another_dataset_where_there_is_one():
    item = apply("negative_control", record(1))
    assert not item.metadata["negative_source_id"].startswith("synthetic_harbour")


def test_a_negative_control_without_an_unrelated_document_is_refused():
    alone = Toolbox(random=Random(0), companions=[record(1)])
    with pytest.raises(TransformError, match="no unrelated document"):
        TRANSFORMS["negative_control"].apply(record(1), alone)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("question_paraphrase", NO_QUESTION, "no question"),
        ("rag_reorder", SourceRecord(dataset="d", source_id="s", context="short"), "segment"),
        ("rag_reorder", replace(NO_QUESTION, context=("Same words here. " * 60 + "\n\n") * 4),
         "repeats a segment"),
        ("fact_paraphrase", SourceRecord(dataset="d", source_id="s", context="short"), "words"),
        ("sparse_edit", SourceRecord(dataset="d", source_id="s", context="X"), "no plain word"),
        ("entity_swap_control", SourceRecord(dataset="d", source_id="s", context="all small"),
         "names no entity"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_shaped_is_refused_with_a_reason(name, source, reason):
    with pytest.raises(TransformError, match=reason):
        apply(name, source)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"question_paraphrase"}))
def test_documents_without_questions_are_shaped_too(name):
    TRANSFORMS[name].check(apply(name, NO_QUESTION))


@pytest.mark.parametrize("name", ALL)
def test_every_transform_is_documented(name):
    page = (Path(__file__).parents[2] / "docs" / "sembench.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {TRANSFORMS[name].summary} |" in page
