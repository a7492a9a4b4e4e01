"""Moved text: what retrieval, agents and chats do to documents an engine has already read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from semblend.quality.items import Ask, Case
from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter, Fact
from semblend.quality.texts.prose import paragraph

SENTENCES = 8
PARAGRAPH_TOKENS = 150
"""For the bundled model's tokenizer. Lengths are approximate and are measured afterwards."""

LENGTHS = (1024, 2048, 4096, 7400)
"""Prompt lengths that a workload's items alternate between."""

Workload = Callable[[int, int, int], Case]
"""Maps (seed, item number, intended tokens) to a case."""

WORKLOADS: dict[str, Workload] = {}


def workload(name: str) -> Callable[[Workload], Workload]:
    """Register a workload by name."""

    def add(make: Workload) -> Workload:
        WORKLOADS[name] = make
        return make

    return add


def writer_for(name: str, seed: int, number: int) -> tuple[DocumentWriter, random.Random]:
    """A writer and a random source for this item."""
    rng = random.Random(f"semblend-quality-{name}-{seed}-{number}")
    return DocumentWriter(rng.randrange(2**31)), rng


def document_of(
    writer: DocumentWriter, tokens: int, *, facts: Sequence[Fact] | int = 4
) -> Document:
    """Write a document of about this many tokens."""
    paragraphs = max(2, round((tokens - 60) / PARAGRAPH_TOKENS))
    return writer.document(paragraphs=paragraphs, sentences=SENTENCES, facts=facts)


def instructions(rng: random.Random) -> tuple[str, str]:
    """Two different instructions: the donor's and the target's."""
    first, second = rng.sample(INSTRUCTIONS, 2)
    return first, second


@workload("instruction")
def instruction_change(seed: int, number: int, tokens: int) -> Case:
    """The same document after another instruction, with another question."""
    writer, rng = writer_for("instruction", seed, number)
    document = document_of(writer, tokens)
    before, now = instructions(rng)
    read, asked = rng.sample(document.facts, 2)
    return Case(
        workload="instruction",
        kind="instruction",
        number=number,
        target=Ask(instruction=now, body=document.text, question=asked.question),
        donors=(Ask(instruction=before, body=document.text, question=read.question),),
        answer=asked.value,
        leaked=(read.value,),
    )


@workload("reordered")
def reordered(seed: int, number: int, tokens: int) -> Case:
    """The passages of one document in another order."""
    writer, rng = writer_for("reordered", seed, number)
    document = document_of(writer, tokens)
    before, now = instructions(rng)
    passages = list(document.passages)
    rng.shuffle(passages)
    read, asked = rng.sample(document.facts, 2)
    return Case(
        workload="reordered",
        kind="reordered",
        number=number,
        target=Ask(instruction=now, body="\n\n".join(passages), question=asked.question),
        donors=(Ask(instruction=before, body=document.text, question=read.question),),
        answer=asked.value,
        leaked=(read.value,),
    )


@workload("composed")
def composed(seed: int, number: int, tokens: int) -> Case:
    """Four passages, each read in a different request, before one question."""
    writer, rng = writer_for("composed", seed, number)
    documents = [document_of(writer, tokens // 2, facts=2) for _ in range(4)]
    before, now = instructions(rng)
    parts: list[str] = []
    for document in documents:
        half = max(1, len(document.passages) // 2)
        parts.extend(document.passages[:half])
    chosen = rng.choice(documents)
    asked = chosen.facts[0]
    return Case(
        workload="composed",
        kind="composed",
        number=number,
        target=Ask(instruction=now, body="\n\n".join(parts), question=asked.question),
        donors=tuple(
            Ask(instruction=before, body=d.text, question=d.facts[-1].question) for d in documents
        ),
        answer=asked.value,
        leaked=tuple(d.facts[-1].value for d in documents),
    )


@workload("gathered")
def gathered(seed: int, number: int, tokens: int) -> Case:
    """Four passages from anywhere in four documents, with the fact anywhere in its passage."""
    writer, rng = writer_for("gathered", seed, number)
    documents = [document_of(writer, tokens // 2) for _ in range(4)]
    before, now = instructions(rng)
    parts: list[str] = []
    stated: list[Fact] = []
    for document in documents:
        half = max(1, len(document.passages) // 2)
        start = rng.randrange(len(document.passages) - half + 1)
        parts.extend(document.passages[start : start + half])
        for block in document.paragraphs[start : start + half]:
            stated.extend(part for part in block if isinstance(part, Fact))
    asked = rng.choice(stated)
    read = [rng.choice([f for f in d.facts if f != asked]) for d in documents]
    return Case(
        workload="gathered",
        kind="gathered",
        number=number,
        target=Ask(instruction=now, body="\n\n".join(parts), question=asked.question),
        donors=tuple(
            Ask(instruction=before, body=d.text, question=f.question)
            for d, f in zip(documents, read, strict=True)
        ),
        answer=asked.value,
        leaked=tuple(dict.fromkeys(f.value for f in read if f.value != asked.value)),
    )


@workload("multi_turn")
def multi_turn(seed: int, number: int, tokens: int) -> Case:
    """A conversation continues after a different system message."""
    writer, rng = writer_for("multi_turn", seed, number)
    document = document_of(writer, tokens)
    before, now = instructions(rng)
    first, second, asked = rng.sample(document.facts, 3)
    return Case(
        workload="multi_turn",
        kind="multi_turn",
        number=number,
        target=Ask(
            instruction=now,
            body=document.text,
            question=asked.question,
            turns=((first.question, f" {first.value}"), (second.question, f" {second.value}")),
        ),
        donors=(
            Ask(
                instruction=before,
                body=document.text,
                question=second.question,
                turns=((first.question, f" {first.value}"),),
            ),
        ),
        answer=asked.value,
        leaked=(first.value, second.value),
    )


@workload("continuation")
def continuation(seed: int, number: int, tokens: int) -> Case:
    """The same document after another instruction, judged on how prose continues."""
    writer, rng = writer_for("continuation", seed, number)
    document = document_of(writer, tokens)
    before, now = instructions(rng)
    return Case(
        workload="continuation",
        kind="continuation",
        number=number,
        target=Ask(instruction=now, body=document.text, question="How does the text go on?"),
        donors=(Ask(instruction=before, body=document.text, question=document.facts[0].question),),
        answer="",
        continuation=" " + " ".join(paragraph(rng, 3)),
    )
