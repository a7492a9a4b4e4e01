"""From a structure to prompts: donor text, target text, the right answer and the donor's.

Donor and target are one skeleton filled in twice. Records swap the value asked for between the two,
so the target contains both the right answer and the one that reveals the donor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from semblend.quality.items import Ask, Case
from semblend.quality.redteam.fillers import filler
from semblend.quality.redteam.forms import FORMS, Form, values_of
from semblend.quality.redteam.grammar import Structure
from semblend.quality.redteam.names import subjects
from semblend.quality.texts.documents import INSTRUCTIONS
from semblend.quality.texts.prose import names as invented
from semblend.quality.texts.prose import sentence

WORKLOAD = "redteam"
LONGER = (
    "Below is a page from the archive of the town, copied by hand and not always with care. Read "
    "all of it before you answer, and answer with the words of the page and with nothing else."
)
ATTRIBUTE, OTHER_ATTRIBUTE = "secret code", "door number"
NEUTRAL_ATTRIBUTES = {ATTRIBUTE: "wardrobe key", OTHER_ATTRIBUTE: "garden gate"}
NAME_DRAWS = 20
OPENERS = ("Now", "In short,", "As is known,", "It is written that", "Note:")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One statement as written in one of the texts."""

    subject: str
    value: str
    extra: str
    gap: str
    between: str = ""
    attribute: str = ATTRIBUTE

    def text(self, form: Form) -> str:
        said = form.text.format(
            subject=self.subject,
            value=self.value,
            extra=self.extra,
            gap=self.gap,
            between=self.between,
        )
        return said.replace(ATTRIBUTE, self.attribute)


@dataclass(slots=True, kw_only=True)
class _Text:
    """Paragraphs of parts. A number stands for the record with that number."""

    paragraphs: list[list[str | int]]
    records: list[_Record]
    above: str
    lead: list[str] = field(default_factory=list)
    on_lines: bool = False
    """Whether records start lines, whatever their form."""

    def render(self, form: Form, spacing: str) -> str:
        blocks: list[str] = []
        above = self.above
        for at, parts in enumerate(self.paragraphs):
            said = ""
            for part in [*self.lead, *parts] if at == 0 else parts:
                is_record = isinstance(part, int)
                text = self.records[part].text(form) if isinstance(part, int) else part
                if is_record and above:
                    text, above = f"{above}\n{text}", ""
                own_line = (form.lines or self.on_lines) and (is_record or said.endswith("\n"))
                said += ("\n" if own_line and said and not said.endswith("\n") else "") + (
                    " " if said and not own_line else ""
                )
                said += text + ("\n" if form.lines and is_record else "")
            blocks.append(said.rstrip("\n"))
        return _spaced("\n\n".join(blocks), spacing)


def write(structure: Structure, seed: int, *, neutral: bool = False) -> Case:
    """Write a structure's case. The same seed writes the same words.

    In a neutral one, donors that disagree with the target speak of somebody or something else, in
    the same places: edits stay where they are, and no donor states what would reveal it.
    """
    rng = random.Random(f"semblend-redteam-{seed}")
    form = FORMS[structure.form]
    # Drawn apart, so that structures without such sentences keep their words.
    apart = random.Random(f"semblend-redteam-between-{seed}")
    donor, target, asked, leaked = _pair(structure, form, rng, apart)
    before, now = rng.sample(INSTRUCTIONS, 2)
    if structure.instruction == "same":
        now = before
    elif structure.instruction == "longer":
        now = LONGER
    texts = [donor, *_others(structure, donor, target, rng)]
    if neutral:
        others = random.Random(f"semblend-redteam-neutral-{seed}")
        texts = [_neutral(text, target, structure, form, others) for text in texts]
    bodies = [text.render(form, structure.spacing) for text in texts]
    mine = target.records[asked]
    attribute = {ATTRIBUTE: mine.attribute}
    question = form.question.format(subject=mine.subject)
    if structure.form != "columns":
        question = question.replace(ATTRIBUTE, attribute[ATTRIBUTE])
    return Case(
        workload=WORKLOAD,
        kind=structure.form,
        number=seed,
        target=Ask(
            instruction=now,
            body=target.render(form, structure.spacing),
            question=question,
        ),
        donors=tuple(
            Ask(instruction=before, body=body, question="What is said here?") for body in bodies
        ),
        answer=mine.extra if _by_column(structure) else mine.value,
        leaked=leaked,
        edits=len(target.records),
        depth=structure.place,
    )


def _neutral(
    text: _Text, target: _Text, structure: Structure, form: Form, rng: random.Random
) -> _Text:
    """The text with other subjects or attributes, unless it states what the target does."""
    if text.records == target.records and text.above == target.above:
        return text
    if structure.change == "attribute" and (_by_column(structure) or ATTRIBUTE in form.text):
        return replace(
            text,
            above=_other_attributes(text.above),
            records=[
                replace(one, attribute=_other_attributes(one.attribute)) for one in text.records
            ],
        )
    taken = {one.subject for one in (*text.records, *target.records)}
    kind = form.subjects or structure.names
    drawn = (subjects(kind, len(text.records), rng) for _ in range(NAME_DRAWS))
    names = next((names for names in drawn if not taken & set(names)), None)
    if names is None:  # too short a list of names
        names = invented(rng, len(text.records))
    return replace(
        text,
        records=[replace(one, subject=name) for one, name in zip(text.records, names, strict=True)],
    )


def _other_attributes(text: str) -> str:
    for attribute, other in NEUTRAL_ATTRIBUTES.items():
        text = text.replace(attribute, other)
    return text


def _by_column(structure: Structure) -> bool:
    """Whether the table's header changed."""
    return structure.change == "attribute" and structure.form == "columns"


def _pair(
    structure: Structure, form: Form, rng: random.Random, apart: random.Random
) -> tuple[_Text, _Text, int, tuple[str, ...]]:
    """Donor, target, the number of the record asked for, and what would reveal the donor."""
    count = 3 if structure.change == "rotated" else 2
    names = subjects(form.subjects or structure.names, count, rng)
    values = list(values_of(form.values, count, rng))
    extras = list(values_of("numbers", count, rng))
    words = int(structure.gap)
    gaps = [filler(structure.filler, words, rng) for _ in range(count)]
    between = [
        "".join(f"{sentence(apart)} " for _ in range(int(structure.between))) for _ in range(count)
    ]
    old = [
        _Record(subject=name, value=value, extra=extra, gap=gap, between=said)
        for name, value, extra, gap, said in zip(names, values, extras, gaps, between, strict=True)
    ]
    above = form.above
    if _by_column(structure):
        new, swapped = old, above.replace(ATTRIBUTE, "?").replace(OTHER_ATTRIBUTE, ATTRIBUTE)
        leaked: tuple[str, ...] = (old[0].value,)
        new_above = swapped.replace("?", OTHER_ATTRIBUTE)
    else:
        old, new = _exchanged(structure, form, old)
        new_above = above
        said = {(record.subject, record.attribute): record.value for record in old}
        leaked = (said[new[0].subject, new[0].attribute],)
    skeleton = _skeleton(structure, count, rng)
    on_lines = structure.place == "line"
    donor = _Text(paragraphs=skeleton, records=old, above=above, on_lines=on_lines)
    target = _Text(
        paragraphs=[list(p) for p in skeleton],
        records=list(new),
        above=new_above,
        on_lines=on_lines,
    )
    if structure.place == "lead":
        size = rng.randrange(1, 5)
        donor.lead = [sentence(rng) for _ in range(size)]
        target.lead = [sentence(rng) for _ in range(size)]
    _also(structure, donor, target, rng)
    return donor, target, 0, leaked


def _exchanged(
    structure: Structure, form: Form, old: list[_Record]
) -> tuple[list[_Record], list[_Record]]:
    """The donor's and the target's records: values stay, but what they belong to rotates."""

    if structure.change == "attribute" and ATTRIBUTE in form.text:
        first, second = old
        old = [first, replace(second, subject=first.subject, attribute=OTHER_ATTRIBUTE)]
    turned = [*old[1:], old[0]]
    return old, [
        replace(record, subject=like.subject, attribute=like.attribute)
        for record, like in zip(old, turned, strict=True)
    ]


def _skeleton(structure: Structure, count: int, rng: random.Random) -> list[list[str | int]]:
    """Where the records are: 0 is asked for, the others are its siblings."""
    each = {"short": 4, "medium": 7, "long": 12}[structure.length]
    blocks: list[list[str | int]] = [[sentence(rng) for _ in range(each)] for _ in range(3)]
    place = structure.place
    if place in ("first", "lead"):
        blocks[0].insert(0, 0)
    elif place == "paragraph":
        blocks[1].insert(0, 0)
    elif place == "last":
        blocks[2].append(0)
    else:
        blocks[1].insert(rng.randrange(1, each), 0)
    at = next(number for number, block in enumerate(blocks) if 0 in block)
    for sibling in range(1, count):
        if place == "pair":
            blocks[at].insert(blocks[at].index(0), sibling)
        elif structure.sibling == "paragraphs" or place in ("first", "lead", "last"):
            other = (at + sibling) % 3
            blocks[other].insert(rng.randrange(1, len(blocks[other]) + 1), sibling)
        elif structure.sibling == "before":
            blocks[0].insert(rng.randrange(1, len(blocks[0]) + 1), sibling)
        else:
            blocks[at].append(sibling)
    return blocks


def _also(structure: Structure, donor: _Text, target: _Text, rng: random.Random) -> None:
    """Change the target in one more way, without touching the fact asked for."""
    blocks = target.paragraphs
    at = next(number for number, block in enumerate(blocks) if 0 in block)
    here = blocks[at].index(0)
    also = structure.also
    if also == "insertion":
        blocks[at].insert(here, sentence(rng))
    elif also == "word_before":
        blocks[at].insert(here, rng.choice(OPENERS))
    elif also == "gap_edit" and target.records[0].gap:
        mine = target.records[0]
        words = mine.gap.lstrip(" ")
        space = " " * (len(mine.gap) - len(words))
        target.records[0] = replace(mine, gap=space + _one_word(words, rng))
    elif also in ("edit_before", "deletion"):
        before = next((i for i in range(here - 1, -1, -1) if isinstance(blocks[at][i], str)), None)
        if before is not None:
            if also == "deletion":
                del blocks[at][before]
            else:
                blocks[at][before] = _one_word(str(blocks[at][before]), rng)
    elif also == "edit_behind":
        for i in range(here + 1, len(blocks[at])):
            if isinstance(blocks[at][i], str):
                blocks[at][i] = _one_word(str(blocks[at][i]), rng)
                break
    elif also == "order":
        target.paragraphs = [*blocks[at:], *blocks[:at]] if at else [*blocks[1:], blocks[0]]
    elif also == "lead_cut":
        # Everything before the record is gone, so it now opens the text.
        target.paragraphs = [blocks[at][here:], *blocks[at + 1 :]]
        stated = {part for block in target.paragraphs for part in block if isinstance(part, int)}
        missing: list[str | int] = [n for n in range(len(target.records)) if n not in stated]
        target.paragraphs.append([sentence(rng), *missing])


def _others(structure: Structure, donor: _Text, target: _Text, rng: random.Random) -> list[_Text]:
    """Further donors: versions that say something else again, or this one's history."""
    also = structure.also
    if also not in ("conflicting", "versions", "other_facts", "facts_by_turns"):
        return []
    found: list[_Text] = []
    for _ in range(2 if also == "versions" else 1):
        paragraphs = [list(block) for block in donor.paragraphs]
        records = donor.records
        if also == "conflicting":
            paragraphs = paragraphs[1:] + paragraphs[:1]
        else:
            block = rng.choice(paragraphs)
            at = rng.randrange(len(block))
            if isinstance(block[at], str):
                block[at] = _one_word(str(block[at]), rng)
        if also == "other_facts":
            third = invented(rng, len(records))
            records = [replace(one, subject=name) for one, name in zip(records, third, strict=True)]
        elif also == "facts_by_turns":
            records = target.records
        found.append(
            replace(
                donor,
                paragraphs=paragraphs,
                records=records,
                lead=[sentence(rng) for _ in donor.lead],
            )
        )
    return found


def _one_word(text: str, rng: random.Random) -> str:
    """Replace one word of the sentence."""
    words: Sequence[str] = text.split(" ")
    at = rng.randrange(len(words))
    return " ".join([*words[:at], "certain", *words[at + 1 :]])


def _spaced(text: str, spacing: str) -> str:
    if spacing == "double":
        return text.replace(". ", ".  ")
    if spacing == "tabs":
        return text.replace("\n\n", "\n\n\t").replace(": ", ":\t")
    if spacing == "no_break":
        return text.replace(" is ", "\u00a0is ").replace(" in ", " in\u00a0")
    if spacing == "returns":
        return text.replace("\n", "\r\n")
    if spacing == "indented":
        return "    " + text.replace("\n", "\n    ")
    return text
