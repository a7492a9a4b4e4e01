"""Builds: same seed and data, same bytes; one record at a time; skips are counted."""

import itertools

import pytest

from sembench.errors import SourceError, UsageError
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.files import write_manifest
from sembench.manifests.spec import SPECS, BuildSpec, RecordChoice, load_spec
from sembench.profiles import SourceRecord
from sembench.transforms import TRANSFORMS
from tests.sembench.records import ListSource, record

DATASETS = ("synthetic_harbour", "synthetic_archive")


def spec(**changes):
    values = {"name": "t", "profile": "synthetic-v1", "max_items_per_dataset": 2} | changes
    return BuildSpec(**values)


def lines(one, source=None):
    return [item.to_line() for item in build_items(one, source or source_for(one), BuildReport())]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_manifest(tmp_path / name, build_items(spec(), source_for(spec()), BuildReport()))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_seed_gives_other_items():
    assert lines(spec(seed=1)) != lines(spec(seed=2))


def test_a_seed_changes_the_choices_of_transforms_too():
    records = [record(index) for index in range(6)]
    first, second = (
        lines(spec(profile="list", seed=seed, transforms=("rag_reorder",)), ListSource(records))
        for seed in (1, 2)
    )
    assert len(first) == len(second) == 2
    assert first != second


def test_an_item_does_not_depend_on_what_else_is_built():
    alone = lines(spec(transforms=("fuzzy_edit",)))
    among = lines(spec(transforms=("sparse_edit", "fuzzy_edit")))
    assert set(alone) <= set(among)


def test_more_records_leave_the_first_ones_as_they_were():
    few = lines(spec(max_items_per_dataset=2, datasets=DATASETS, transforms=("rag_reorder",)))
    many = lines(spec(max_items_per_dataset=5, datasets=DATASETS, transforms=("rag_reorder",)))
    assert set(few) <= set(many)


def test_items_come_one_record_at_a_time():
    source = ListSource([record(index) for index in range(50)])
    one = spec(profile="list", max_items_per_dataset=None, transforms=("exact_repeat",))
    items = build_items(one, source, BuildReport())
    list(itertools.islice(items, 3))
    assert source.handed_out == 3


def test_records_that_cannot_be_shaped_are_skipped_and_counted():
    short = SourceRecord(dataset="d", source_id="short", context="Too short to cut.")
    report = BuildReport()
    one = spec(profile="list", transforms=("exact_repeat", "rag_reorder"))
    built = list(build_items(one, ListSource([short, record(0)]), report))
    assert [item.transform for item in built] == ["exact_repeat", "exact_repeat", "rag_reorder"]
    assert report.records == 2
    assert report.skipped == {"rag_reorder": 1}
    assert "1 segment" in report.reasons["rag_reorder"]


def test_the_first_records_are_taken_unless_a_sample_is_asked_for():
    records = [record(index) for index in range(40)]
    one = spec(profile="list", transforms=("exact_repeat",), max_items_per_dataset=5)
    first = [i.source_id for i in build_items(one, ListSource(records), BuildReport())]
    assert first == [r.source_id for r in records[:5]]
    sampled = spec(
        profile="list",
        transforms=("exact_repeat",),
        max_items_per_dataset=5,
        sample=RecordChoice.SEEDED,
    )
    chosen = [i.source_id for i in build_items(sampled, ListSource(records), BuildReport())]
    order = [r.source_id for r in records]
    assert len(chosen) == 5
    assert chosen == sorted(chosen, key=order.index)
    assert chosen != first
    shuffled = ListSource(records[::-1])
    again = {i.source_id for i in build_items(sampled, shuffled, BuildReport())}
    assert again == set(chosen), "a sample depends on ids, not on order"


def test_two_records_with_one_id_are_refused():
    with pytest.raises(SourceError, match="two records with the id"):
        lines(spec(profile="list"), ListSource([record(0), record(0)]))


def test_every_item_of_every_transform_is_built_and_passes_its_own_check():
    report = BuildReport()
    for item in build_items(spec(datasets=DATASETS), source_for(spec(datasets=DATASETS)), report):
        TRANSFORMS[item.transform].check(item)
    assert set(report.items) == set(TRANSFORMS)
    assert not report.skipped


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_items_per_dataset": 0}, "--max-items-per-dataset"),
        ({"max_segments": 1}, "--max-segments"),
        ({"min_segment_chars": 0}, "--min-segment-chars"),
    ],
)
def test_a_spec_names_the_flag_that_is_wrong(change, named):
    with pytest.raises(UsageError, match=named):
        spec(**change)


def test_unknown_or_repeated_transforms_are_named():
    with pytest.raises(UsageError, match="'nonsense' is not one of exact_repeat"):
        lines(spec(transforms=("nonsense",)))
    with pytest.raises(UsageError, match="given twice"):
        lines(spec(transforms=("rag_reorder", "rag_reorder")))


def test_specs_survive_their_dict_and_come_from_files(tmp_path):
    for one in SPECS.values():
        assert BuildSpec.from_dict(one.to_dict(), where="spec") == one
        assert load_spec(one.name) == one
    path = tmp_path / "mine.json"
    path.write_text('{"profile": "fixture", "transforms": ["rag_reorder"]}', encoding="utf-8")
    assert load_spec(str(path)) == BuildSpec(
        name="mine", profile="fixture", transforms=("rag_reorder",)
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"profile": 3}', r"\.profile"),
        ('{"profile": "fixture", "speed": 1}', "unknown field 'speed'"),
        ('{"profile": "fixture", "datasets": "a"}', r"\.datasets"),
        ('{"profile": "fixture", "max_segments": null}', r"\.max_segments"),
        ('{"profile": "fixture", "sample": "best"}', r"\.sample"),
        ("[]", "expected an object"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_spec_file_names_what_is_wrong(tmp_path, text, named):
    path = tmp_path / "spec.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=named):
        load_spec(str(path))
