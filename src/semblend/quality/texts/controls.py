"""Adversarial controls: prompts that make a donor's fact the tempting answer.

The donor states a different value for exactly what is asked. No policy may let that value become
the answer.
"""

from __future__ import annotations

from dataclasses import replace

from semblend.quality.items import Ask, Case
from semblend.quality.texts.documents import Document, Fact
from semblend.quality.texts.edited import edited_case
from semblend.quality.texts.prose import sentence
from semblend.quality.texts.workloads import (
    Workload,
    document_of,
    instructions,
    workload,
    writer_for,
)


def negation(seed: int, number: int, tokens: int) -> Case:
    """The donor states what the target denies, and denies what is true."""
    case = edited_case("control", "polarity", seed, 3 * number, tokens)
    return replace(case, kind="negation", number=number)


def swapped_entities(seed: int, number: int, tokens: int) -> Case:
    """Subjects are swapped."""
    case = edited_case("control", "exchanged", seed, 3 * number, tokens)
    return replace(case, kind="swapped_entities", number=number)


def swapped_numbers(seed: int, number: int, tokens: int) -> Case:
    """Values are swapped."""
    case = edited_case("control", "numbers", seed, 3 * number, tokens)
    return replace(case, kind="swapped_numbers", number=number)


def wrong_document(seed: int, number: int, tokens: int) -> Case:
    """A document read before states a different value for the same subject.

    Most of its passages are in the target too, but not the one with the fact.
    """
    writer, rng = writer_for("control-wrong_document", seed, number)
    shared = document_of(writer, tokens)
    asked = rng.choice(shared.facts)
    theirs = replace(asked, value=writer.value())
    while theirs.value in {fact.value for fact in shared.facts}:
        theirs = replace(asked, value=writer.value())
    other = document_of(writer, 400, facts=[theirs])
    kept = [
        text
        for text, block in zip(shared.passages, shared.paragraphs, strict=True)
        if asked not in block
    ]
    before, now = instructions(rng)
    return Case(
        workload="control",
        kind="wrong_document",
        number=number,
        target=Ask(instruction=now, body=shared.text, question=asked.question),
        donors=(
            Ask(
                instruction=before,
                body="\n\n".join((*kept, *other.passages)),
                question=theirs.question,
            ),
        ),
        answer=asked.value,
        leaked=(theirs.value,),
    )


def same_template(seed: int, number: int, tokens: int) -> Case:
    """Two forms with the same fields and the same small print, filled in differently."""
    writer, rng = writer_for("control-same_template", seed, number)
    fields = max(3, min(24, tokens // 170))
    mine = writer.facts(fields)
    values = [fact.value for fact in mine]
    theirs = [replace(f, value=v) for f, v in zip(mine, values[1:] + values[:1], strict=True)]
    small_print = [[sentence(rng) for _ in range(7)] for _ in range(fields)]
    before, now = instructions(rng)
    at = rng.randrange(fields)
    return Case(
        workload="control",
        kind="same_template",
        number=number,
        target=Ask(instruction=now, body=_form(mine, small_print), question=mine[at].question),
        donors=(
            Ask(
                instruction=before,
                body=_form(theirs, small_print),
                question=theirs[at].question,
            ),
        ),
        answer=mine[at].value,
        leaked=(theirs[at].value,),
        edits=fields,
    )


def _form(facts: list[Fact], small_print: list[list[str]]) -> str:
    blocks: tuple[tuple[str | Fact, ...], ...] = tuple(
        (fact, *text) for fact, text in zip(facts, small_print, strict=True)
    )
    return Document(title="form", paragraphs=blocks).text


CONTROLS: dict[str, Workload] = {
    "negation": negation,
    "swapped_entities": swapped_entities,
    "swapped_numbers": swapped_numbers,
    "wrong_document": wrong_document,
    "same_template": same_template,
}
for _name, _make in CONTROLS.items():
    workload(f"control_{_name}")(_make)
