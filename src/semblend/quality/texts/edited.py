"""Edited documents: a donor that says almost the same but means something else.

The target's own tokens contain the right answer, but the donor's K/V may still carry what was there
before. Depths: `head`, the value follows the changed word; `middle`, a clause separates them;
`deep`, the fact asked for is unchanged, far after an edit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from semblend.quality.items import Ask, Case, other_values
from semblend.quality.texts.documents import Document, Fact
from semblend.quality.texts.workloads import document_of, instructions, workload, writer_for

DEPTHS = ("head", "middle", "deep")
EDIT_COUNTS = (1, 2, 4, 8, 12, 20)
CLAUSES = ("today", "now", "here")
"""Kept short: the bundled model finds values further from their subject less often, cold and warm.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clausal(Fact):
    """A fact with a clause between its subject and its value."""

    clause: str

    @property
    def statement(self) -> str:
        return f"The {self.attribute} of {self.subject} {self.clause} is {self.value}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Distant(Fact):
    """A fact whose value comes long after its subject, in the same sentence or the next."""

    form: str

    @property
    def statement(self) -> str:
        return self.form.format(attribute=self.attribute, subject=self.subject, value=self.value)


DISTANT_FORMS = (
    "{subject} has one {attribute}. It is {value}.",
    "The {attribute} of {subject} is, as the council wrote in its book last year, {value}.",
    "The {attribute} of {subject} is written down here as {value}.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied(Fact):
    """A value that a subject does not have."""

    @property
    def statement(self) -> str:
        return f"The {self.attribute} of {self.subject} is not {self.value}."


Changes = dict[Fact, Fact]
Edit = Callable[[list[Fact], list[str]], Changes]
"""Maps facts to edit, and fresh names and values, to their replacements."""


def renamed(facts: list[Fact], fresh: list[str]) -> Changes:
    """New subjects, same values."""
    return {f: replace(f, subject=name) for f, name in zip(facts, fresh, strict=False)}


def exchanged(facts: list[Fact], fresh: list[str]) -> Changes:
    """Pairs of facts swap subjects, so that each value belongs to the other subject."""
    changes: Changes = {}
    for one, two in zip(facts[::2], facts[1::2], strict=False):
        changes[one] = replace(one, subject=two.subject)
        changes[two] = replace(two, subject=one.subject)
    return changes


def numbers(facts: list[Fact], fresh: list[str]) -> Changes:
    """Pairs of facts swap values."""
    changes: Changes = {}
    for one, two in zip(facts[::2], facts[1::2], strict=False):
        changes[one] = replace(one, value=two.value)
        changes[two] = replace(two, value=one.value)
    return changes


def polarity(facts: list[Fact], fresh: list[str]) -> Changes:
    """Pairs state two values of one subject, one of them denied. The denial moves to the other."""
    changes: Changes = {}
    for one, two in zip(facts[::2], facts[1::2], strict=False):
        changes[one] = _denied(one) if not isinstance(one, Denied) else _stated(one)
        changes[two] = _denied(two) if not isinstance(two, Denied) else _stated(two)
    return changes


def order(facts: list[Fact], fresh: list[str]) -> Changes:
    """Pairs of facts swap places."""
    changes: Changes = {}
    for one, two in zip(facts[::2], facts[1::2], strict=False):
        changes[one], changes[two] = two, one
    return changes


EDITS: dict[str, Edit] = {
    "renamed": renamed,
    "exchanged": exchanged,
    "numbers": numbers,
    "polarity": polarity,
    "order": order,
    "distant": exchanged,
}


def edited_case(name: str, kind: str, seed: int, number: int, tokens: int) -> Case:
    """Make a near-duplicate: the donor's document with some facts edited."""
    writer, rng = writer_for(f"{name}-{kind}", seed, number)
    depth = "distant" if kind == "distant" else DEPTHS[number % len(DEPTHS)]
    wanted = EDIT_COUNTS[rng.randrange(len(EDIT_COUNTS))]
    most = max(2, tokens // 50)  # at most a third of a document is facts
    edits = min(wanted, most)
    pairs = edits if kind == "renamed" else 2 * ((edits + 1) // 2)
    base = document_of(writer, tokens, facts=pairs + 2)
    document, touched = _prepare(base, kind, depth, pairs, rng)
    changes = EDITS[kind](touched, [f.subject for f in writer.facts(pairs)])
    target = document.with_facts(changes)
    before, now = instructions(rng)
    asked, leaked = _question(document, target, changes, kind, depth, rng)
    return Case(
        workload=name,
        kind=kind,
        number=number,
        target=Ask(instruction=now, body=target.text, question=asked.question),
        donors=(
            Ask(
                instruction=before,
                body=document.text,
                question=rng.choice(document.facts).question,
            ),
        ),
        answer=asked.value,
        leaked=leaked,
        edits=len(changes),
        depth=depth,
    )


def _prepare(
    document: Document, kind: str, depth: str, count: int, rng: random.Random
) -> tuple[Document, list[Fact]]:
    """Give facts the form that the edit and the depth need. Returns those to edit."""
    facts = list(document.facts)
    shaped: Changes = {}
    for at in range(count):
        fact = facts[at]
        if kind in ("exchanged", "numbers", "polarity", "order") and at % 2:
            partner = shaped.get(facts[at - 1], facts[at - 1])
            fact = replace(fact, attribute=partner.attribute)
            if kind == "polarity":
                fact = _denied(replace(fact, subject=partner.subject))
        if kind == "distant":
            fact = Distant(
                attribute=facts[at - at % 2].attribute,
                subject=fact.subject,
                value=fact.value,
                form=DISTANT_FORMS[(at // 2) % len(DISTANT_FORMS)],
            )
        elif depth == "middle" and not isinstance(fact, Denied):
            clause = rng.choice(CLAUSES)
            fact = Clausal(
                attribute=fact.attribute, subject=fact.subject, value=fact.value, clause=clause
            )
        shaped[facts[at]] = fact
    return document.with_facts(shaped), [shaped[facts[at]] for at in range(count)]


def _question(
    donor: Document, target: Document, changes: Changes, kind: str, depth: str, rng: random.Random
) -> tuple[Fact, tuple[str, ...]]:
    """The fact to ask for, and the values that would be the donor's."""
    new = [fact for fact in target.facts if not isinstance(fact, Denied)]
    edited = [fact for fact in new if fact in changes.values()]
    untouched = [fact for fact in new if fact not in changes.values()]
    asked = rng.choice(untouched if depth == "deep" else edited)
    if depth == "deep" or kind == "renamed":
        return asked, other_values(donor.facts, asked.value)
    theirs = tuple(
        fact.value
        for fact in donor.facts
        if fact.subject == asked.subject
        and fact.attribute == asked.attribute
        and fact.value != asked.value
    )
    return asked, theirs or other_values(donor.facts, asked.value)


def _denied(fact: Fact) -> Denied:
    return Denied(attribute=fact.attribute, subject=fact.subject, value=fact.value)


def _stated(fact: Fact) -> Fact:
    return Fact(attribute=fact.attribute, subject=fact.subject, value=fact.value)


def _register(kind: str) -> None:
    def make(seed: int, number: int, tokens: int) -> Case:
        return edited_case("edited", kind, seed, number, tokens)

    workload(f"edited_{kind}")(make)


for _kind in EDITS:
    _register(_kind)
