"""What conversations are about: passages with facts to ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sembench.facts import make_facts
from sembench.profiles.synthetic import synthetic_paragraphs
from sembench.profiles.synthetic_words import TRADES


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question whose answer one passage states."""

    text: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text that retrieval returns whole, and the questions it answers."""

    name: str
    text: str
    questions: tuple[Question, ...]


class Library(Protocol):
    """Passages by number; a number always gives the same passage."""

    def passage(self, number: int) -> Passage: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLibrary:
    """Passages from the synthetic profile's trades: `paragraphs` long, two facts each."""

    seed: int
    paragraphs: int = 2

    def passage(self, number: int) -> Passage:
        """Passage `number`, which depends only on the seed and the number."""
        trade = list(TRADES)[number % len(TRADES)]
        random, title, paragraphs = synthetic_paragraphs(
            trade, f"conversations/{self.seed}/{number}", self.paragraphs
        )
        facts = make_facts(random, 2)
        for place, fact in zip((0, -1), facts, strict=True):
            paragraphs[place] += " " + fact.statement
        return Passage(
            name=f"{trade.removeprefix('synthetic_')}-{number}.txt",
            text="\n\n".join([title, *paragraphs]),
            questions=tuple(Question(text=fact.question, answer=fact.value) for fact in facts),
        )
