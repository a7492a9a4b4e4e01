"""Cases are what they claim: the right answer stands in the target, the wrong one in a donor."""

import re
from dataclasses import replace

import pytest

from semblend.quality.items import Ask, data_fingerprint
from semblend.quality.suite import KINDS_OF_CONTROLS, KINDS_OF_EDITS
from semblend.quality.texts.workloads import WORKLOADS

NUMBERS = range(6)


def cases(name, tokens=1024):
    return [WORKLOADS[name](3, number, tokens) for number in NUMBERS]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_same_seed_makes_the_same_cases_and_another_others(name):
    assert cases(name) == cases(name)
    assert WORKLOADS[name](3, 0, 1024) != WORKLOADS[name](4, 0, 1024)
    assert len({case.case_id for case in cases(name)}) == len(NUMBERS)


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - {"continuation"}))
def test_the_answer_stands_in_the_target_for_the_subject_that_is_asked(name):
    for case in cases(name):
        subject = re.search(r" of (\w+)\?", case.target.question)[1]
        assert case.answer not in case.leaked
        stated = [s for s in re.split(r"(?<=\.)\s", case.target.body) if case.answer in s]
        assert any(subject in s and " not " not in s for s in stated) or "It is" in stated[0]


@pytest.mark.parametrize("name", KINDS_OF_CONTROLS)
def test_a_controls_donor_states_another_value_for_what_is_asked(name):
    for case in cases(name):
        subject = re.search(r" of (\w+)\?", case.target.question)[1]
        donor = "\n".join(ask.body for ask in case.donors)
        for value in case.leaked:
            told = [s for s in re.split(r"(?<=\.)\s", donor) if value in s and subject in s]
            assert told, (case.case_id, value)
            assert all(" not " not in s for s in told)


@pytest.mark.parametrize("name", KINDS_OF_EDITS)
def test_edits_change_some_sentences_and_leave_the_rest_word_for_word(name):
    for case in cases(name, tokens=2048):
        mine, theirs = (
            set(re.split(r"(?<=\.)\s", ask.body)) for ask in (case.target, *case.donors)
        )
        assert case.edits >= 1
        assert case.target.body != case.donors[0].body
        assert len(mine & theirs) >= 0.5 * len(mine)


def test_all_depths_and_many_edit_counts_occur():
    found = [WORKLOADS["edited_exchanged"](1, number, 4096) for number in range(60)]
    assert {case.depth for case in found} == {"head", "middle", "deep"}
    assert min(case.edits for case in found) <= 2
    assert max(case.edits for case in found) == 20


def test_a_chat_puts_the_body_first_and_turns_in_order():
    ask = Ask(instruction="I", body="B", question="q3", turns=(("q1", "a1"), ("q2", "a2")))
    roles = [(m["role"], m["content"]) for m in ask.messages]
    assert roles == [
        ("system", "I"),
        ("user", "B\n\nQuestion: q1"),
        ("assistant", "a1"),
        ("user", "Question: q2"),
        ("assistant", "a2"),
        ("user", "Question: q3"),
    ]


def test_the_datas_fingerprint_sees_every_word_and_the_order():
    one, two = cases("instruction")[:2]
    assert data_fingerprint([one, two]) != data_fingerprint([two, one])
    assert data_fingerprint([one]) == data_fingerprint([cases("instruction")[0]])
    other = replace(one, donors=(replace(one.donors[0], body=one.donors[0].body + "x"),))
    assert data_fingerprint([other]) != data_fingerprint([one])
    assert data_fingerprint([replace(one, answer="1")]) != data_fingerprint([one])


def test_a_dialogue_is_short_turns_that_the_donor_read_in_another_order():
    for case in cases("dialogue"):
        lines = [line for line in case.target.body.split("\n") if line]
        words = sorted(len(line.split()) for line in lines)
        assert words[len(words) // 4] <= 6, "a quarter of the turns are a few words"
        assert all(re.match(r"\w+: ", line) for line in lines)
        first, second = case.target.body.split("\n\n")
        assert case.donors[0].body == f"{second}\n\n{first}"


def test_ten_turns_ask_about_a_document_that_only_the_donor_has_read():
    for case in cases("ten_turns"):
        (donor,) = case.donors
        assert len(case.target.turns) == 9
        assert not donor.turns
        assert donor.body == case.target.body
        said = [answer.strip() for _, answer in case.target.turns]
        assert len({*said, case.answer}) == 10
        assert donor.question not in [question for question, _ in case.target.turns]


def test_a_certificate_rests_on_dialogues_where_they_are_asked_for():
    from semblend.quality.certifying import choice_cells, confirmation_cells

    for cells in (choice_cells, confirmation_cells):
        usual = {cell.workload for cell in cells(4)}
        more = {cell.workload for cell in cells(4, more=("dialogue",))}
        assert more - usual == {"dialogue"}
        assert usual < more
