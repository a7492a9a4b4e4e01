"""The demo's scenarios: documents read first, and requests that use them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter, Fact

SENTENCES = 9
"""Per paragraph. Twenty paragraphs are about 3,400 tokens for the bundled model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPrompt:
    """An instruction, a body and a question whose answer is known."""

    instruction: str
    body: str
    fact: Fact

    @property
    def messages(self) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self.instruction},
            {"role": "user", "content": f"{self.body}\n\nQuestion: {self.fact.question}"},
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One request, asked cold and warm."""

    name: str
    what: str
    prompt: DemoPrompt
    leaked: str | None = None
    """The answer that would reveal the donor's fact."""
    policy: str | None = None
    tenant: str = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What is read first, and what is asked afterwards."""

    read: tuple[DemoPrompt, ...]
    scenarios: tuple[Scenario, ...]


def make_demo(seed: int, paragraphs: int) -> Demo:
    """Make documents and scenarios. The same seed makes the same demo."""
    writer = DocumentWriter(seed)
    documents = [
        writer.document(paragraphs=paragraphs, sentences=SENTENCES, facts=6) for _ in range(4)
    ]
    read = tuple(_prompt(0, document.text, document.facts[0]) for document in documents)
    first = documents[0]
    exchanged, asked = _exchange_subjects(first)
    unseen = writer.document(paragraphs=paragraphs, sentences=SENTENCES, facts=6)
    return Demo(
        read=read,
        scenarios=(
            Scenario(
                name="new instruction",
                what="the same document after another instruction, with another question",
                prompt=_prompt(2, first.text, first.facts[3]),
            ),
            Scenario(
                name="longer instruction",
                what="another document after a longer instruction",
                prompt=_prompt(3, documents[1].text, documents[1].facts[4]),
            ),
            Scenario(
                name="reordered passages",
                what="the passages of one document in another order",
                prompt=_prompt(4, _reordered(first), first.facts[2]),
            ),
            Scenario(
                name="four donors",
                what="a quarter of each of four documents",
                prompt=_prompt(1, _composed(documents), documents[2].facts[0]),
            ),
            Scenario(
                name="edited copy",
                what="two subjects swapped; the certified policy recomputes after the edits",
                prompt=_prompt(2, exchanged.text, asked.right),
                leaked=asked.leaked,
            ),
            Scenario(
                name="edited copy, naive",
                what="the same without recompute: why identical tokens are not enough",
                prompt=_prompt(2, exchanged.text, asked.right),
                leaked=asked.leaked,
                policy="none",
            ),
            Scenario(
                name="unseen document",
                what="control: new text, so there is nothing to reuse",
                prompt=_prompt(2, unseen.text, unseen.facts[1]),
            ),
            Scenario(
                name="other tenant",
                what="control: another tenant asks about the document; nothing is shared",
                prompt=_prompt(2, first.text, first.facts[3]),
                tenant="somebody-else",
            ),
        ),
    )


def _prompt(instruction: int, body: str, fact: Fact) -> DemoPrompt:
    return DemoPrompt(instruction=INSTRUCTIONS[instruction], body=body, fact=fact)


def _reordered(document: Document) -> str:
    passages = document.passages
    third = len(passages) // 3
    return "\n\n".join((*passages[2 * third :], *passages[third : 2 * third], *passages[:third]))


def _composed(documents: Sequence[Document]) -> str:
    return "\n\n".join(
        passage
        for document in documents
        for passage in document.passages[: len(document.passages) // 4]
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    right: Fact
    leaked: str


def _exchange_subjects(document: Document) -> tuple[Document, _Exchange]:
    """Swap the subjects of two facts, so that each value belongs to the other subject."""
    one, two = document.facts[1], document.facts[4]
    two = replace(two, attribute=one.attribute)
    settled = document.with_facts({document.facts[4]: two})
    new_one, new_two = replace(one, subject=two.subject), replace(two, subject=one.subject)
    return settled.with_facts({one: new_one, two: new_two}), _Exchange(new_two, one.value)
