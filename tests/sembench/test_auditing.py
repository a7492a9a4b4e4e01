"""Audits: items that are not what they say are found; foreign transforms are left unchecked."""

from dataclasses import replace

from sembench.manifests.auditing import MOST_VIOLATIONS, audit
from sembench.manifests.building import BuildReport, build_items
from sembench.manifests.files import write_manifest
from sembench.manifests.spec import BuildSpec
from sembench.tokenizers import load_tokenizer
from tests.sembench.records import ListSource, record

SPEC = BuildSpec(name="t", profile="list", transforms=("exact_repeat", "sparse_edit"))


def items():
    records = [record(index) for index in range(2)]
    return list(build_items(SPEC, ListSource(records), BuildReport()))


def audited(tmp_path, chosen):
    path = tmp_path / "m.jsonl"
    write_manifest(path, chosen)
    return audit(path, tokenizer=load_tokenizer(None), block_size=16)


def test_a_sound_manifest_has_no_violations(tmp_path):
    report = audited(tmp_path, items())
    assert report["violation_count"] == 0
    assert report["items"] == 4
    assert report["by_dataset"] == {"synthetic_harbour": 4}
    assert report["by_transform"]["exact_repeat"]["exact_block_hit_rate"] == 1.0
    assert 0 < report["by_transform"]["sparse_edit"]["exact_block_hit_rate"] < 1
    assert report["by_transform"]["sparse_edit"]["with_answers"] == 2


def test_items_that_break_their_law_are_listed(tmp_path):
    chosen = items()
    chosen[0] = replace(chosen[0], recipient_prompt=chosen[0].recipient_prompt + " ")
    chosen[1] = replace(chosen[1], item_id="0" * 16)
    report = audited(tmp_path, chosen)
    assert report["violation_count"] == 2
    assert report["violations"][0] == {
        "item_id": chosen[0].item_id,
        "problem": "exact_repeat: recipient and donor differ",
    }
    assert "item_id is not the id" in report["violations"][1]["problem"]


def test_transforms_of_other_tools_are_counted_as_unchecked(tmp_path):
    foreign = replace(items()[0], transform="their_own")
    report = audited(tmp_path, [foreign])
    assert report["violation_count"] == 0
    assert report["unchecked_transforms"] == {"their_own": 1}


def test_a_long_list_is_cut_and_the_count_is_not(tmp_path):
    base = items()[0]
    many = [replace(base, item_id=f"{n:016x}") for n in range(MOST_VIOLATIONS + 5)]
    report = audited(tmp_path, many)
    assert report["violation_count"] == MOST_VIOLATIONS + 5
    assert len(report["violations"]) == MOST_VIOLATIONS
