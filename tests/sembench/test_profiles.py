"""Profiles: generated records, LongBench-format files and the hub's archive."""

import json
import lzma
import zipfile
from pathlib import Path

import pytest

from sembench.errors import SourceError, UsageError
from sembench.profiles import PROFILES, load_profile
from sembench.profiles.hub import HubLongBenchV1, HubLongBenchV2, v1_archive
from sembench.profiles.local_files import LocalFiles
from sembench.profiles.synthetic import Synthetic, synthetic_record
from sembench.profiles.synthetic_words import TRADES


def line(**changes):
    data = {"_id": "1", "dataset": "qasper", "input": "Who?", "context": "Some text.",
            "answers": ["me"], "length": 2}  # fmt: skip
    return json.dumps({**data, **changes}) + "\n"


def v2(**changes):
    data = {"_id": "9", "domain": "Law", "length": "short", "question": "Which?",
            "choice_A": "this", "choice_B": "that", "answer": "B",
            "context": "A text."}  # fmt: skip
    return {**data, **changes}


def local(path, **changes):
    return LocalFiles(profile="longbench-v1", path=path, **changes)


def test_generated_records_hold_their_answer_once_and_differ():
    records = list(Synthetic(records_per_dataset=6).records())
    assert len(records) == 6 * len(TRADES)
    assert len({record.context for record in records}) == len(records)
    for record in records:
        assert record.context.count(record.answers[0]) == 1
        assert record.input.endswith("?")


def test_a_generated_record_depends_on_seed_dataset_and_index_alone():
    name = "synthetic_railway"
    assert synthetic_record(name, 3, seed=1) == synthetic_record(name, 3, seed=1)
    assert synthetic_record(name, 3, seed=1) != synthetic_record(name, 3, seed=2)
    assert list(Synthetic(datasets=(name,), records_per_dataset=2, seed=5).records()) == [
        synthetic_record(name, index, seed=5) for index in range(2)
    ]


def test_the_fixture_is_the_same_for_everybody():
    first, second = (list(load_profile("fixture", seed=seed).records()) for seed in (0, 1))
    assert first == second
    assert len(first) == 12


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz"])
def test_local_files_are_read_plain_and_compressed(tmp_path, name):
    text = line() + "\n" + line(_id="2", dataset="lcc", input="", answers=[])
    path = tmp_path / name
    path.write_bytes(lzma.compress(text.encode()) if name.endswith("xz") else text.encode())
    for where in (path, tmp_path):
        records = list(local(where).records())
        assert [(r.dataset, r.source_id, r.source_index) for r in records] == [
            ("qasper", "1", 0),
            ("lcc", "2", 0),
        ]
    assert [r.dataset for r in local(path, datasets=("lcc",)).records()] == ["lcc"]


def test_a_file_is_a_dataset_where_records_do_not_name_one(tmp_path):
    (tmp_path / "hotpotqa.jsonl").write_text(
        json.dumps({"context": "Some text here."}) + "\n", encoding="utf-8"
    )
    (record,) = local(tmp_path).records()
    assert (record.dataset, record.source_id) == ("hotpotqa", "hotpotqa-0")
    assert record.metadata == {"length": 3, "length_band": "short"}


def test_multiple_choice_questions_become_a_question_and_the_right_choice(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(v2()) + "\n", encoding="utf-8")
    (record,) = local(tmp_path).records()
    assert record.input == "Which?\n(A) this\n(B) that"
    assert record.answers == ("that",)
    assert record.metadata["domain"] == "Law"
    assert record.metadata["length_band"] == "short"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (line(context=""), r"a\.jsonl:1\.context"),
        (line(context=None), r"a\.jsonl:1\.context"),
        (line() + line(input=3), r"a\.jsonl:2\.input"),
        (line(answers="me"), r"a\.jsonl:1\.answers"),
        (line(input="half \ud800"), r"a\.jsonl:1\.input"),
        ("[]\n", r"a\.jsonl:1: expected an object"),
        ("{\n", r"a\.jsonl:1: not JSON"),
    ],
)
def test_a_wrong_record_is_named(tmp_path, text, named):
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=named):
        list(local(tmp_path).records())


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match="is not a file or a folder"):
        local(tmp_path / "none")
    with pytest.raises(SourceError, match=r"has no file ending in \.jsonl"):
        local(tmp_path)
    (tmp_path / "a.jsonl").write_text(line(), encoding="utf-8")
    with pytest.raises(SourceError, match="'musique' is not in"):
        list(local(tmp_path, datasets=("musique",)).records())
    (tmp_path / "b.jsonl.xz").write_bytes(b"not xz")
    with pytest.raises(SourceError, match=r"b\.jsonl\.xz: cannot be read"):
        list(local(tmp_path).records())


def test_longbench_v1_is_read_from_its_archive(tmp_path):
    pytest.importorskip("datasets")
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for name in ("qasper", "lcc"):
            rows = (line(_id=f"{name}-{number}", dataset=name) for number in range(4))
            packed.writestr(f"data/{name}.jsonl", "".join(rows))
    source = HubLongBenchV1(datasets=("qasper", "lcc"), limit=2, archive=str(archive))
    ids = [record.source_id for record in source.records()]
    assert ids == ["qasper-0", "qasper-1", "lcc-0", "lcc-1"]
    with pytest.raises(SourceError, match="--data-dir"):
        list(HubLongBenchV1(datasets=("musique",), archive=str(archive)).records())


def test_longbench_v2_is_read_from_its_repository(tmp_path):
    pytest.importorskip("datasets")
    rows = [v2(_id=str(number), domain="Law" if number else "Code") for number in range(3)]
    (tmp_path / "data.json").write_text(json.dumps(rows), encoding="utf-8")
    source = HubLongBenchV2(datasets=("Law",), repository=str(tmp_path))
    records = list(source.records())
    assert [record.source_id for record in records] == ["1", "2"]
    assert {record.dataset for record in records} == {"longbench-v2"}


def test_a_revision_pins_the_archive():
    assert v1_archive("abc") == "hf://datasets/zai-org/LongBench@abc/data.zip"
    assert "@main/" in v1_archive(None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": "longbench-v7"}, "--profile"),
        ({"name": "fixture", "data_dir": Path("x")}, "--data-dir"),
        ({"name": "synthetic-v1", "hf_revision": "x"}, "--hf-revision"),
        ({"name": "longbench-v1", "data_dir": Path("x"), "hf_revision": "x"}, "--hf-revision"),
    ],
)
def test_flags_that_do_not_go_together_are_named(options, named):
    with pytest.raises(UsageError, match=named):
        load_profile(**options)


def test_unknown_synthetic_datasets_are_named():
    with pytest.raises(SourceError, match="synthetic_harbour"):
        load_profile("synthetic-v1", datasets=("qasper",))


def test_every_profile_gives_a_source(tmp_path):
    (tmp_path / "a.jsonl").write_text(line(), encoding="utf-8")
    for name in PROFILES:
        generated = name in ("fixture", "synthetic-v1")
        published = Path(__file__).parent / "published"
        data = None if generated else published if name == "published" else tmp_path
        source = load_profile(name, data_dir=data)
        assert source.profile == name
        assert next(source.records()).context
