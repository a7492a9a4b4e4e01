"""Documents of a given length with facts to ask for, and prompts that contain them."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter

TOKENS_PER_WORD = 1.35
"""For the reference model's tokenizer on this prose; figures use the backend's own count."""
_SENTENCES = 5
_FACTS = 6

LONG_INSTRUCTION = (
    "You are a clerk in the archive of a small town, and visitors rely on what you tell them. "
    "Somebody has brought the pages below and has one question about them, which stands at the "
    "very end. Read all of the pages before you answer, for what is asked may stand anywhere in "
    "them. Answer with the value alone, exactly as the pages write it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A document after an instruction, with a question about one of its facts."""

    instruction: str
    document: str
    question: str
    answer: str

    @property
    def text(self) -> str:
        """The prompt in the form the reference model was trained on."""
        return f"{self.instruction}\n\n{self.document}\n\nQuestion: {self.question}"


def document_of(writer: DocumentWriter, tokens: int) -> Document:
    """A document of about `tokens` tokens."""
    sample = writer.document(paragraphs=2, sentences=_SENTENCES, facts=0)
    per_paragraph = max(1.0, len(sample.text.split()) / 2 * TOKENS_PER_WORD)
    paragraphs = max(1, round(tokens / per_paragraph))
    return writer.document(paragraphs=paragraphs, sentences=_SENTENCES, facts=_FACTS)


def case(document: Document, *, instruction: int, fact: int) -> Case:
    """The document after instruction number `instruction`, asking for fact number `fact`."""
    chosen = document.facts[fact % len(document.facts)]
    wordings = (*INSTRUCTIONS, LONG_INSTRUCTION)
    return Case(
        instruction=wordings[instruction % len(wordings)],
        document=document.text,
        question=chosen.question,
        answer=chosen.value,
    )
