"""Published datasets: every shape, from every kind of file, and what happens without data.

The rows in `published/` are ours, in the publishers' field names.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sembench.errors import SourceError, UsageError
from sembench.profiles import load_profile
from sembench.profiles.base import SourceRecord
from sembench.profiles.published import PUBLISHED
from tests.sembench.mock_runs import sembench

ROWS = Path(__file__).parent / "published"
COUNTS = {"wildchat": 2, "scbench": 4, "longeval": 2, "triviaqa": 2, "narrativeqa": 2}
COUNTS |= {"wikitext-103": 2}
"""Records of those whose rows are not records; the others have three."""


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROWS / f"{name}.jsonl").read_text("utf-8").splitlines()]


def records(*datasets: str, data_dir: Path = ROWS, limit: int | None = None) -> list[SourceRecord]:
    source = load_profile(
        "published", datasets=datasets, data_dir=data_dir, records_per_dataset=limit
    )
    return list(source.records())


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_dataset_becomes_documents_with_names_of_their_own(name: str) -> None:
    found = records(name)
    assert len(found) == COUNTS.get(name, 3)
    assert len({record.source_id for record in found}) == len(found)
    for record in found:
        assert record.dataset == name
        assert len(record.context.split()) > 30
        assert record.answers or name == "wikitext-103"


def test_one_folder_holds_all_of_them() -> None:
    assert {record.dataset for record in records()} == set(PUBLISHED)
    assert len(records(limit=1)) == len(PUBLISHED)


def test_what_is_asked_and_what_is_right_come_from_the_row() -> None:
    by_name = {name: records(name)[0] for name in PUBLISHED}
    assert by_name["xsum"].answers == (rows_of("xsum")[0]["summary"],)
    assert "|||||" not in by_name["multi_news"].context
    assert by_name["samsum"].context.startswith("Iris: ")
    assert by_name["wildchat"].input == "Which officer is named in it?"
    assert by_name["wildchat"].answers == ("Della Marsh.",)
    assert "Which officer" not in by_name["wildchat"].context
    assert by_name["longeval"].input.endswith("cobalt-otter?")
    assert f"<{by_name['longeval'].answers[0]}>" in by_name["longeval"].context
    assert by_name["triviaqa"].answers == ("Della Marsh", "Marsh")
    assert by_name["narrativeqa"].answers == ("Ansel Brock",)
    scbench = records("scbench")[1]
    assert scbench.input == "What is the value of key-21-0?"
    assert f"key-21-0: {scbench.answers[0]}\n" in scbench.context


def test_articles_are_put_together_from_lines_and_sections_stay_inside() -> None:
    first, second = records("wikitext-103")
    assert first.metadata["title"] == "Harbour of Orrin"
    assert "= = Repair = =" in first.context
    assert second.context.startswith("= Clock of Tesk =")


def test_csv_parquet_and_folders_of_the_hub_read_like_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = records("wikihow")
    with (tmp_path / "wikihow.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["headline", "title", "text"])
        table.writeheader()
        table.writerows(rows_of("wikihow"))
    assert records("wikihow", data_dir=tmp_path) == expected
    folder = tmp_path / "triviaqa" / "rc.wikipedia"
    folder.mkdir(parents=True)
    rows = pyarrow.Table.from_pylist(rows_of("triviaqa"))
    parquet.write_table(rows, folder / "validation-00000-of-00001.parquet")
    parquet.write_table(rows.slice(0, 1), folder / "train-00000-of-00001.parquet")
    assert records("triviaqa", data_dir=tmp_path) == records("triviaqa")
    # The folder may also be the dataset's own.
    assert records("triviaqa", data_dir=tmp_path / "triviaqa") == records("triviaqa")
    (tmp_path / "triviaqa" / "rc.wikipedia" / "validation-00000-of-00001.parquet").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"validation.*parquet: cannot be read"):
        records("triviaqa", data_dir=tmp_path)


def test_nothing_is_fetched_unasked_and_the_error_names_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("sembench.profiles.rows.load_streamed", never)
    with pytest.raises(SourceError, match=r"--data-dir.*xsum\.jsonl.*--hf-revision main"):
        load_profile("published", datasets=("xsum",))
    done = sembench("build", "--profile", "published", "--output", "m.jsonl")
    assert done.exit_code == 2
    assert "--data-dir" in str(done.exception)


def test_the_hub_is_asked_for_the_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load(what: str, path: str, config: str | None, **options: Any) -> Any:
        asked.update(options, path=path, config=config)
        return iter(rows_of("triviaqa"))

    monkeypatch.setattr("sembench.profiles.rows.load_streamed", load)
    source = load_profile("published", datasets=("triviaqa",), hf_revision="abc")
    assert len(list(source.records())) == 2
    assert asked == {
        "path": "mandarjoshi/trivia_qa",
        "config": "rc.wikipedia",
        "split": "validation",
        "revision": "abc",
    }
    by_hand = load_profile("published", datasets=("wikihow",), hf_revision="abc")
    with pytest.raises(SourceError, match="--data-dir"):
        list(by_hand.records())


@pytest.mark.parametrize(
    ("name", "row", "named"),
    [
        ("xsum", {"summary": "s", "id": "1"}, r"xsum\.jsonl:1\.document"),
        ("cnn_dailymail", {"article": "a"}, r"cnn_dailymail\.jsonl:1\.highlights"),
        ("wildchat", {"conversation": [{"role": 3}]}, "wildchat"),
        ("wildchat", {"conversation": [7]}, r"wildchat\.jsonl:1: not a conversation"),
        ("scbench", {"context": "c", "multi_turns": [{}]}, r"multi_turns\[0\]\.input"),
        ("narrativeqa", {"document": "text"}, r"narrativeqa\.jsonl:1\.document"),
        ("triviaqa", {"search_results": [{"search_context": "x"}], "answer": "a"}, "answer"),
        ("wikitext-103", {"text": 3}, r"wikitext-103\.jsonl:1\.text"),
        ("longeval", {}, r"longeval\.jsonl:1\.prompt"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, name: str, row: dict[str, Any], named: str) -> None:
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(SourceError, match=named):
        records(name, data_dir=tmp_path)


def test_datasets_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--datasets: 'x-sum' is not one of xsum"):
        records("x-sum")
    with pytest.raises(SourceError, match="holds none of"):
        records(data_dir=tmp_path)
    shutil.copy(ROWS / "xsum.jsonl", tmp_path)
    with pytest.raises(SourceError, match=r"no samsum\.jsonl.*fields: id, dialogue, summary"):
        records("samsum", data_dir=tmp_path)
    assert [record.dataset for record in records(data_dir=tmp_path)] == ["xsum"] * 3
    (tmp_path / "wildchat.jsonl").write_text(json.dumps(rows_of("wildchat")[2]) + "\n")
    with pytest.raises(SourceError, match="wildchat: no row"):
        records("wildchat", data_dir=tmp_path)


def test_manifests_are_built_of_them_and_listed(tmp_path: Path) -> None:
    done = sembench(
        *("build", "--profile", "published", "--data-dir", ROWS, "--datasets", "xsum", "samsum"),
        *(
            "--transforms",
            "instruction_variant",
            "repeat_shifted",
            "--output",
            tmp_path / "m.jsonl",
        ),
    )
    assert done.exit_code == 0, done.output
    audited = sembench("audit-manifest", "--manifest", tmp_path / "m.jsonl")
    assert audited.exit_code == 0, audited.output
    listed = sembench("list", "datasets")
    assert all(name in listed.output for name in PUBLISHED)
