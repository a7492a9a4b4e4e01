"""Ways to state that a subject has a value: prose, lists, tables, code, across sentences."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CITIES = ("Paris", "London", "Berlin", "Madrid", "Vienna", "Oslo", "Dublin", "Prague", "Lisbon")
JOBS = ("teacher", "farmer", "sailor", "nurse", "painter", "baker", "doctor", "clerk", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A statement with `{subject}`, `{gap}`, `{value}`, perhaps `{extra}` or `{between}`, and its
    question.
    """

    text: str
    question: str
    values: str
    """`numbers`, `years`, `cities` or `jobs`."""
    lines: bool = False
    """Whether it takes lines of its own."""
    above: str = ""
    """A line before the records that says how to read them."""
    subjects: str = ""
    """The kind of subject, where names make no sense."""


FORMS: Mapping[str, Form] = {
    "lives": Form(
        text="{subject}{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "works": Form(
        text="{subject}{gap} works as a {value}.",
        question="What does {subject} work as?",
        values="jobs",
    ),
    "born": Form(
        text="{subject}{gap} was born in the year {value}.",
        question="In what year was {subject} born?",
        values="years",
    ),
    "moved": Form(
        text="{subject}{gap} moved to the city of {value}.",
        question="Which city did {subject} move to?",
        values="cities",
    ),
    "code": Form(
        text="The secret code of {subject}{gap} is {value}.",
        question="What is the secret code of {subject}?",
        values="numbers",
    ),
    "quotation": Form(
        text='"{subject}{gap} lives in {value}", said the clerk.',
        question="Where does {subject} live?",
        values="cities",
    ),
    "footnote": Form(
        text="[3] {subject}{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
        lines=True,
    ),
    "bullet": Form(
        text="- secret code of {subject}{gap}: {value}",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "numbered": Form(
        text="7. The door number of {subject}{gap} is {value}",
        question="What is the door number of {subject}?",
        values="numbers",
        lines=True,
    ),
    "key_value": Form(
        text="{subject}{gap} = {value}",
        question="What is the value of {subject}?",
        values="numbers",
        lines=True,
    ),
    "source_code": Form(
        text='config["{subject}"] = {value}  #{gap} checked',
        question="What is the value of {subject}?",
        values="numbers",
        lines=True,
    ),
    "json": Form(
        text='{{"name": "{subject}", "note": "{gap}", "code": "{value}"}},',
        question="What is the code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "table": Form(
        text="| {subject} |{gap} | {value} |",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
        above="| name | note | secret code |",
    ),
    "columns": Form(
        text="| {subject} |{gap} | {value} | {extra} |",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
        above="| name | note | secret code | door number |",
    ),
    "heading": Form(
        text="## {subject}\n\n{between}The secret code{gap} is {value}.",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "field": Form(
        text="Name: {subject}\nNote:{gap} none\nCity: {value}",
        question="Where does {subject} live?",
        values="cities",
        lines=True,
    ),
    "unit": Form(
        text="Codes of {subject} follow.{gap} The code is {value}.",
        question="What is the code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "pronoun": Form(
        text="{subject} is an old friend of ours. {between}He{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "pronoun_line": Form(
        text="This page is about {subject}.\n{between}He{gap} works as a {value}.",
        question="What does {subject} work as?",
        values="jobs",
        lines=True,
    ),
    "pronoun_paragraph": Form(
        text="{subject} came to us in the spring.\n\n{between}He{gap} works as a {value}.",
        question="What does {subject} work as?",
        values="jobs",
        lines=True,
    ),
    "question": Form(
        text="Where does {subject}{gap} live? In {value}!",
        question="Where does {subject} live?",
        values="cities",
    ),
    "opening": Form(
        text="According to the old register, {subject}{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "told": Form(
        text='{subject} told the clerk{gap}: "I live in {value}."',
        question="Where does {subject} live?",
        values="cities",
    ),
    "footnote_mark": Form(
        text="The house of {subject}[4] is old.\n[4]{gap} Its door number is {value}.",
        question="What is the door number of {subject}?",
        values="numbers",
        lines=True,
    ),
    "list_heading": Form(
        text="Secret code of {subject}:\n-{gap} {value}",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "nested_keys": Form(
        text="{subject}:\n  note:{gap} none\n  code: {value}",
        question="What is the code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "function": Form(
        text='if name == "{subject}":  #{gap} checked\n    return {value}',
        question="What is the value of {subject}?",
        values="numbers",
        lines=True,
    ),
    "unit_heading": Form(
        text="## Length in {subject}\n\nThe old road{gap} is {value} long.",
        question="What is the length in {subject}?",
        values="numbers",
        lines=True,
        subjects="units",
    ),
    "description": Form(
        text="{subject} came to us in the spring. {between}The old man{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "third_sentence": Form(
        text="{subject} came in the spring. The roads were bad. {between}He{gap} lives in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "first_person": Form(
        text="My name is {subject}. {between}I{gap} live in {value}.",
        question="Where does {subject} live?",
        values="cities",
    ),
    "speaker": Form(
        text="{subject}: I came from far. {between}I{gap} live in {value}.",
        question="Where does {subject} live?",
        values="cities",
        lines=True,
    ),
    "letter": Form(
        text="Dear {subject},\n\n{between}Your secret code{gap} is {value}.",
        question="What is the secret code of {subject}?",
        values="numbers",
        lines=True,
    ),
    "signed": Form(
        text="I{gap} live in {value}. {between}Signed, {subject}.",
        question="Where does {subject} live?",
        values="cities",
        lines=True,
    ),
}


def values_of(kind: str, count: int, rng: random.Random) -> Sequence[str]:
    """Draw distinct values."""
    if kind == "cities":
        return rng.sample(CITIES, count)
    if kind == "jobs":
        return rng.sample(JOBS, count)
    low, high = (1700, 1990) if kind == "years" else (1000, 10_000)
    return [str(number) for number in rng.sample(range(low, high), count)]
