"""Chats of short turns: many small spans of talk, where reuse has the least text to hold on to."""

from __future__ import annotations

import random

from semblend.quality.items import Ask, Case
from semblend.quality.texts.documents import Document, Fact
from semblend.quality.texts.prose import names
from semblend.quality.texts.workloads import document_of, instructions, workload, writer_for

DIALOGUE = "dialogue"
REPLIES = (
    "ok",
    "are you sure?",
    "yes, since Monday",
    "no idea",
    "fine with me",
    "when?",
    "let us ask again tomorrow",
    "that is news to me",
    "good, thanks",
    "I will write it down",
)
_SPEAKERS = 3


@workload(DIALOGUE)
def dialogue(seed: int, number: int, tokens: int) -> Case:
    """Two chats that were read in the other order; a fact that somebody mentions is asked for."""
    writer, rng = writer_for(DIALOGUE, seed, number)
    documents = [document_of(writer, tokens // 2, facts=2) for _ in range(2)]
    chats = [chat(document, rng) for document in documents]
    before, now = instructions(rng)
    facts = [fact for document in documents for fact in document.facts]
    read, asked = rng.sample(facts, 2)
    return Case(
        workload=DIALOGUE,
        kind=DIALOGUE,
        number=number,
        target=Ask(instruction=now, body="\n\n".join(chats), question=asked.question),
        donors=(Ask(instruction=before, body="\n\n".join(chats[::-1]), question=read.question),),
        answer=asked.value,
        leaked=tuple(fact.value for fact in facts if fact.value != asked.value),
    )


def chat(document: Document, rng: random.Random) -> str:
    """A document as people would tell it: a sentence a turn, and replies of a few words."""
    speakers = names(rng, _SPEAKERS)
    lines: list[str] = []
    for block in document.paragraphs:
        for part in block:
            teller, listener = rng.sample(speakers, 2)
            lines.append(f"{teller}: {part.statement if isinstance(part, Fact) else part}")
            if rng.random() < 0.5:
                lines.append(f"{listener}: {rng.choice(REPLIES)}")
    return "\n".join(lines)
