"""Documents with known facts: prose with sentences that answer questions.

A fact is one sentence, "The secret code of Bradorn is 4821.", at a known place in a document.
Changing a document (renaming a subject, swapping two) changes its facts too, so the right answer
and the answer a donor would leak are always known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semblend.quality.texts.prose import names, paragraph

ATTRIBUTES = (
    "secret code",
    "access code",
    "capital",
    "phone number",
    "door number",
    "password",
    "index number",
    "postal code",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something a document states exactly once."""

    attribute: str
    subject: str
    value: str

    @property
    def statement(self) -> str:
        """The sentence that states it."""
        return f"The {self.attribute} of {self.subject} is {self.value}."

    @property
    def question(self) -> str:
        """The question it answers."""
        return f"What is the {self.attribute} of {self.subject}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Paragraphs of sentences. A fact is at (paragraph, sentence)."""

    title: str
    paragraphs: tuple[tuple[str | Fact, ...], ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The document's facts, in order."""
        return tuple(s for block in self.paragraphs for s in block if isinstance(s, Fact))

    @property
    def passages(self) -> tuple[str, ...]:
        """The document's paragraphs as text."""
        return tuple(
            " ".join(s.statement if isinstance(s, Fact) else s for s in block)
            for block in self.paragraphs
        )

    @property
    def text(self) -> str:
        return "\n\n".join(self.passages)

    def with_facts(self, changed: dict[Fact, Fact]) -> Document:
        """Replace some facts."""
        blocks = tuple(
            tuple(changed.get(s, s) if isinstance(s, Fact) else s for s in block)
            for block in self.paragraphs
        )
        return replace(self, paragraphs=blocks)


class DocumentWriter:
    """Writes documents. The same seed writes the same documents."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"semblend-documents-{seed}")

    def value(self) -> str:
        """A four-digit value, which the reference model retrieves best."""
        return str(self._rng.randrange(1000, 10_000))

    def facts(self, count: int) -> list[Fact]:
        """Facts with different subjects and values."""
        values: dict[str, None] = {}
        while len(values) < count:
            values[self.value()] = None
        return [
            Fact(attribute=self._rng.choice(ATTRIBUTES), subject=subject, value=value)
            for subject, value in zip(names(self._rng, count), values, strict=True)
        ]

    def document(
        self, *, paragraphs: int = 6, sentences: int = 8, facts: Sequence[Fact] | int = 4
    ) -> Document:
        """Write a document. Each fact gets its own paragraph if there are enough."""
        stated = self.facts(facts) if isinstance(facts, int) else list(facts)
        blocks: list[list[str | Fact]] = [
            list(paragraph(self._rng, sentences)) for _ in range(paragraphs)
        ]
        for number, fact in enumerate(stated):
            block = blocks[number * paragraphs // max(1, len(stated))]
            block.insert(self._rng.randrange(1, len(block) + 1), fact)
        title = " ".join(names(self._rng, 2))
        return Document(title=title, paragraphs=tuple(tuple(block) for block in blocks))


INSTRUCTIONS = (
    "Answer the question using the document.",
    "You are a careful assistant. Read the text below and reply with the value only.",
    "Below is a report from the archive. Use it, and nothing else, to answer what is asked "
    "at the end. Be brief and exact.",
    "As the clerk of the town, look up the requested entry in the following pages and state "
    "it in as few words as possible. Do not explain how you found it.",
    "The next pages were collected for a visitor. Find what the visitor wants to know.",
)
