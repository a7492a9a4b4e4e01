"""Real text: from a file, from an archive like LongBench's, and what is said otherwise."""

import json
import lzma
import zipfile

import pytest

from semblend.core.errors import SerialisationError
from semblend.quality.texts.reading import MOST_CHARACTERS, reading_cases


def row(context, question, dataset="short"):
    return {
        "input": question,
        "context": context,
        "answers": [f"answer to {question}"],
        "dataset": dataset,
        "_id": "1",
    }


ROWS = [row(f"context {n} " * 20, f"question {n}.{k}") for n in range(6) for k in range(1 + n % 2)]


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "data.zip"
    lines = "".join(json.dumps(one) + "\n" for one in ROWS)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data/short.jsonl", lines)
        file.writestr("data/other.jsonl", json.dumps({"text": "x"}) + "\n")
    return str(path)


def asked(cases):
    return [(case.target.question, case.donors[0].question, case.answer) for case in cases]


def test_a_file_and_the_hub_give_the_same_questions(tmp_path, archive):
    plain = tmp_path / "rows.jsonl"
    plain.write_text("".join(json.dumps(one) + "\n" for one in ROWS), encoding="utf-8")
    packed = tmp_path / "rows.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    from_file = asked(reading_cases(str(plain), seed=1, items=6))
    assert len(from_file) == 6
    assert from_file == asked(reading_cases(str(packed), seed=1, items=6))
    hub = list(reading_cases("longbench:short", seed=1, items=6, archive=archive))
    assert from_file == asked(hub)
    assert {case.kind for case in hub} == {"short"}


def test_contexts_with_two_questions_come_first_and_nobody_is_asked_what_was_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ROWS), encoding="utf-8")
    for number, (now, before, answer) in enumerate(
        asked(reading_cases(str(path), seed=3, items=6))
    ):
        assert now != before
        assert answer == f"answer to {now}"
        assert (now.split(".")[0] == before.split(".")[0]) == (number < 3)


def test_a_long_context_is_cut_and_the_same_on_both_sides(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [row(f"{n} " + "word " * 20_000, f"question {n}") for n in range(5)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    (case,) = reading_cases(str(path), seed=1, items=1)
    assert len(case.target.body) == MOST_CHARACTERS
    assert case.target.body == case.donors[0].body


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("longbench:missing", "Without a network, give --data a file"),
        ("longbench:other", "not LongBench's form"),
        ("nowhere.jsonl", "cannot be read"),
    ],
)
def test_what_cannot_be_read_says_what_would_be_right(source, said, archive):
    with pytest.raises(SerialisationError, match=said):
        list(reading_cases(source, seed=1, items=2, archive=archive))


def test_too_few_contexts_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    with pytest.raises(SerialisationError, match="at least 5"):
        list(reading_cases(str(path), seed=1, items=2))
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(SerialisationError, match="LongBench's form"):
        list(reading_cases(str(path), seed=1, items=2))


def test_chats_in_samsums_form_are_asked_for_what_they_come_to(tmp_path):
    plain = tmp_path / "samsum.jsonl"
    rows = [
        {"id": str(n), "dialogue": f"A: shall we {n}?\r\nB: yes, at {n}", "summary": f"At {n}."}
        for n in range(6)
    ]
    plain.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    found = list(reading_cases(str(plain), seed=1, items=6))
    assert {case.kind for case in found} == {"samsum"}
    assert {case.answer for case in found} == {f"At {n}." for n in range(6)}
    assert all("B: yes" in case.target.body for case in found)
    plain.write_text(json.dumps({"dialogue": "A: no summary"}) + "\n", encoding="utf-8")
    with pytest.raises(SerialisationError, match=r"samsum\.jsonl:1"):
        list(reading_cases(str(plain), seed=1, items=6))
