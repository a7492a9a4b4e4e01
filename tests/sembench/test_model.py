"""Manifest items: equal items are equal bytes, and what is wrong is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.errors import ManifestError
from sembench.model import BENCHMARK_VERSION, DonorPrompt, ManifestItem

text = st.text(max_size=30)
metadata = st.dictionaries(text, st.one_of(st.integers(), text, st.booleans()), max_size=3)
donor = st.builds(DonorPrompt, donor_id=text.filter(bool), text=text, label=text, metadata=metadata)
item = st.builds(
    ManifestItem,
    item_id=text.filter(bool),
    dataset=text.filter(bool),
    source_id=text,
    transform=text.filter(bool),
    donor_prompts=st.lists(donor, max_size=3, unique_by=lambda d: d.donor_id).map(tuple),
    recipient_prompt=text.filter(bool),
    input=text,
    answers=st.lists(text, max_size=3).map(tuple),
    negative_control=st.booleans(),
    metadata=metadata,
)

PLAIN = {
    "item_id": "i",
    "dataset": "d",
    "source_id": "s",
    "transform": "t",
    "donor_prompts": [{"donor_id": "x", "text": "a", "label": "base_prompt", "metadata": {}}],
    "recipient_prompt": "p",
}


@given(item)
def test_an_item_survives_its_line(one):
    line = one.to_line()
    assert ManifestItem.from_line(line) == one
    assert ManifestItem.from_line(line).to_line() == line


@given(item)
def test_a_line_is_one_line_with_sorted_keys_and_plain_text(one):
    line = one.to_line()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    keys = list(json.loads(line))
    assert keys == sorted(keys)
    assert json.dumps(one.recipient_prompt, ensure_ascii=False) in line


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"item_id": ""}, "item.item_id"),
        ({"dataset": 3}, "item.dataset"),
        ({"donor_prompts": "x"}, "item.donor_prompts"),
        ({"donor_prompts": [{"donor_id": "x"}]}, "item.donor_prompts[0].text"),
        ({"donor_prompts": [7]}, "item.donor_prompts[0]"),
        ({"answers": ["a", None]}, "item.answers[1]"),
        ({"negative_control": "no"}, "item.negative_control"),
        ({"metadata": []}, "item.metadata"),
        ({"recipient_prompt": None}, "item.recipient_prompt"),
        ({"recipient_prompt": "half \ud800"}, "item.recipient_prompt"),
        ({"benchmark_version": "sembench.manifest.v9"}, "item.benchmark_version"),
    ],
)
def test_a_wrong_field_is_named(change, named):
    with pytest.raises(ManifestError) as caught:
        ManifestItem.from_dict({**PLAIN, **change})
    assert str(caught.value).startswith(named + ":")


@pytest.mark.parametrize("field", sorted(set(PLAIN) - {"source_id"}))
def test_a_missing_field_is_named(field):
    data = {name: value for name, value in PLAIN.items() if name != field}
    with pytest.raises(ManifestError, match=rf"item\.{field}: is missing"):
        ManifestItem.from_dict(data)


def test_donors_of_an_item_have_different_ids():
    twice = {**PLAIN, "donor_prompts": PLAIN["donor_prompts"] * 2}
    with pytest.raises(ManifestError, match="donor_id is not unique"):
        ManifestItem.from_dict(twice)


def test_an_item_without_a_version_is_of_the_version_we_read():
    assert ManifestItem.from_dict(PLAIN).benchmark_version == BENCHMARK_VERSION
