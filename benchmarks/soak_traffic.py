"""What the soak sends: documents that return in every way, and callers that misbehave."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter, Fact


class Kind(StrEnum):
    """How a prompt relates to what was read before."""

    FRESH = "fresh"
    """A document nobody has read."""
    REPEATED = "repeated"
    """A prompt sent before, word for word: an exact prefix."""
    MOVED = "moved"
    """A known document after another instruction, with another question."""
    REORDERED = "reordered"
    """A known document with its passages in another order."""
    EDITED = "edited"
    """A known document in which two facts swapped values: bounded-approximate."""
    SHORT = "short"
    """Too short for a lookup."""


class Manner(StrEnum):
    """How a caller behaves."""

    WHOLE = "whole"
    STREAM = "stream"
    HANG_UP_EARLY = "hang_up_early"
    """Disconnects before the answer begins."""
    HANG_UP_AMID = "hang_up_amid"
    """Disconnects after the first bytes of a stream."""
    MALFORMED = "malformed"
    """A body that is refused."""
    INTRUDER = "intruder"
    """An unknown key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A chat whose right answer is known."""

    kind: Kind
    messages: tuple[dict[str, str], ...]
    fact: Fact | None

    def states_fact(self, answer: str) -> bool:
        """Whether an answer states the requested fact."""
        return self.fact is None or self.fact.value in answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One action of a client."""

    prompt: Prompt
    manner: Manner
    tenant: int
    max_tokens: int

    def body(self, model: str, *, reuse: bool = True) -> dict[str, Any]:
        """The request's JSON; greedy, so that answers can be compared."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(self.prompt.messages),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.manner in (Manner.STREAM, Manner.HANG_UP_AMID),
        }
        if not reuse:
            body["semblend"] = {"reuse": False, "donate": False}
            body["stream"] = False
        if self.manner is Manner.MALFORMED:
            body["max_tokens"] = -1
        return body


_KINDS = {
    Kind.FRESH: 15,
    Kind.REPEATED: 20,
    Kind.MOVED: 30,
    Kind.REORDERED: 10,
    Kind.EDITED: 10,
    Kind.SHORT: 15,
}
_MANNERS = {
    Manner.WHOLE: 50,
    Manner.STREAM: 25,
    Manner.HANG_UP_EARLY: 8,
    Manner.HANG_UP_AMID: 8,
    Manner.MALFORMED: 5,
    Manner.INTRUDER: 4,
}
_PARAGRAPHS = (1, 2, 2, 3, 3, 8)
_REMEMBERED = 12


class Traffic:
    """Calls of several tenants, each with its own documents and one that all share."""

    def __init__(self, *, tenants: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._writer = DocumentWriter(seed)
        self._tenants = tenants
        self._common = self._document()
        self._read: list[list[Document]] = [[self._common] for _ in range(tenants)]
        self._sent: list[list[Prompt]] = [[] for _ in range(tenants)]

    def next(self) -> Call:
        tenant = self._random.randrange(self._tenants)
        prompt = self._prompt(tenant, self._choose(_KINDS))
        self._sent[tenant] = [*self._sent[tenant][-_REMEMBERED:], prompt]
        return Call(
            prompt=prompt,
            manner=self._choose(_MANNERS),
            tenant=tenant,
            max_tokens=self._random.choice((6, 8, 16)),
        )

    def _prompt(self, tenant: int, kind: Kind) -> Prompt:
        if kind is Kind.REPEATED and self._sent[tenant]:
            return replace(self._random.choice(self._sent[tenant]), kind=kind)
        if kind is Kind.SHORT:
            asked = {"role": "user", "content": f"Say hello, number {self._random.random()}."}
            return Prompt(kind=kind, messages=(asked,), fact=None)
        if kind is Kind.FRESH:
            document = self._document()
            self._read[tenant] = [self._common, *self._read[tenant][-_REMEMBERED:], document]
        else:
            document = self._random.choice(self._read[tenant])
        text = document.text
        fact = self._random.choice(document.facts)
        if kind is Kind.REORDERED:
            text = "\n\n".join(self._random.sample(document.passages, len(document.passages)))
        if kind is Kind.EDITED:
            one, two = document.facts[0], document.facts[-1]
            changed = {one: replace(one, value=two.value), two: replace(two, value=one.value)}
            text, fact = document.with_facts(changed).text, changed[one]
        return _asked(kind, self._random.choice(INSTRUCTIONS), text, fact)

    def _document(self) -> Document:
        return self._writer.document(paragraphs=self._random.choice(_PARAGRAPHS), facts=2)

    def _choose(self, weights: dict[Any, int]) -> Any:
        choices: Sequence[Any] = list(weights)
        return self._random.choices(choices, list(weights.values()))[0]


def _asked(kind: Kind, instruction: str, text: str, fact: Fact) -> Prompt:
    messages = (
        {"role": "system", "content": instruction},
        {"role": "user", "content": f"{text}\n\nQuestion: {fact.question}"},
    )
    return Prompt(kind=kind, messages=messages, fact=fact)
