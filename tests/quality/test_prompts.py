"""Prompts without answers: what is a donor of what, and that wrong files are named."""

import json

import pytest

from semblend.core.errors import SerialisationError
from semblend.quality.items import data_fingerprint, encode
from semblend.quality.measured_prompts import prompt_cases, read_prompts, real_cases

DOCUMENT = " ".join(f"word{number}" for number in range(80))
ASKED = ("What is it?", "Say it shortly.", "Who wrote it?")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_prompts_that_share_text_are_donors_of_one_another(tmp_path):
    rows = [{"prompt": f"{question} {DOCUMENT}"} for question in ASKED]
    rows.append({"messages": [{"role": "user", "content": "Nothing of that. " * 20}]})
    cases = {
        case.target.messages[0]["content"]: case
        for case in prompt_cases(lines(tmp_path / "own.jsonl", rows), seed=1, items=10)
    }
    assert len(cases) == 4
    first = cases[rows[0]["prompt"]]
    assert first.kind == "shared"
    assert {donor.messages[0]["content"] for donor in first.donors} == {
        row["prompt"] for row in rows[1:3]
    }
    alone = cases["Nothing of that. " * 20]
    assert alone.kind == "moved"
    (donor,) = alone.donors
    text = donor.messages[0]["content"]
    assert text.endswith("Nothing of that. " * 20)
    assert not text.startswith("Nothing")
    assert all(case.answer == "" for case in cases.values())


def test_the_same_seed_asks_the_same_and_another_another(tmp_path):
    source = lines(tmp_path / "own.jsonl", [{"prompt": f"{n} {DOCUMENT}"} for n in range(9)])
    prints = [data_fingerprint(prompt_cases(source, seed=seed, items=4)) for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_a_folder_holds_texts_and_json_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.md").write_text("two")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    lines(tmp_path / "d.jsonl", [{"prompt": "three"}])
    found = [prompt.chat[0][1] for prompt in read_prompts(str(tmp_path))]
    assert found == ["one", "two", "three"]


def test_an_audit_stream_gives_the_prompts_that_were_recorded_in_it(tmp_path):
    rows = [
        {"event": "request_first_seen", "token_ids": list(range(100))},
        {"event": "materialised", "tokens": 4},
        {"event": "request_first_seen", "token_ids": [7, *range(100)]},
    ]
    source = "audit:" + lines(tmp_path / "audit.jsonl", rows)
    cases = list(prompt_cases(source, seed=1, items=10))
    assert {len(case.target.token_ids) for case in cases} == {100, 101}
    assert encode(None, cases[0].target).tolist() == list(cases[0].target.token_ids)
    assert {case.kind for case in cases} == {"shared"}
    bare = lines(tmp_path / "bare.jsonl", [{"event": "request_first_seen", "prompt_tokens": 9}])
    with pytest.raises(SerialisationError, match="audit_prompts"):
        list(read_prompts(f"audit:{bare}"))


@pytest.mark.parametrize(
    "row", [{"text": 1}, {"prompt": 3}, {"messages": [{"role": "user"}]}, {"token_ids": ["x"]}, 5]
)
def test_a_line_that_is_no_prompt_is_named(row, tmp_path):
    source = lines(tmp_path / "own.jsonl", [{"prompt": "good"}, row])
    with pytest.raises(SerialisationError, match=r"own.jsonl:2"):
        list(read_prompts(source))


def test_too_few_prompts_and_missing_files_are_said(tmp_path):
    with pytest.raises(SerialisationError, match="at least 2"):
        list(prompt_cases(lines(tmp_path / "one.jsonl", [{"prompt": "a"}]), seed=1, items=1))
    with pytest.raises(SerialisationError, match="cannot be read"):
        list(real_cases("/no/such/file", seed=1, items=1))


def test_questions_with_answers_are_still_read_as_such(tmp_path):
    rows = [
        {"input": f"q{n}", "context": f"context {n} " * 50, "answers": ["a"], "dataset": "d"}
        for n in range(6)
    ]
    cases = list(real_cases(lines(tmp_path / "long.jsonl", rows), seed=1, items=3))
    assert [case.answer for case in cases] == ["a"] * 3
