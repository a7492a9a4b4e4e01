"""What is said: a chat about one document, and an agent that compacts its history twice.

A story yields questions and is sent the answers, so that every engine can be asked the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter

Messages = list[dict[str, str]]
SYSTEM = "You are an agent. " + " ".join(INSTRUCTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One turn."""

    messages: Messages
    tokens: int
    """Most tokens of the answer."""
    kind: str
    expected: str | None = None
    """What a right answer holds."""
    full: bool = False
    """Generate all tokens, whatever the model would say."""


Story = Generator[Question, str, None]


def chat(seed: int, *, length: int, turns: int) -> Story:
    """Questions about a document, after somebody else has read it."""
    writer = DocumentWriter(seed)
    document = writer.document(paragraphs=max(2, length // 150), sentences=8, facts=turns + 1)
    *asked, read = document.facts
    yield Question(
        messages=_about(document, INSTRUCTIONS[0], read.question), tokens=12, kind="read before"
    )
    messages = _about(document, INSTRUCTIONS[1], asked[0].question)
    for fact, following in zip(asked, [*asked[1:], None], strict=True):
        answer = yield Question(messages=messages, tokens=12, kind="turn", expected=fact.value)
        messages = [*messages, {"role": "assistant", "content": answer}]
        if following is not None:
            messages.append({"role": "user", "content": f"Question: {following.question}"})


def agent(seed: int, *, threshold: int, compactions: int, count: int) -> Story:
    """A tool loop: `threshold` characters of history are summarised and cut, `compactions` times.

    `count` is how many characters a token has, about.
    """
    files = list(_files(seed))
    order = _reads(len(files))
    messages: Messages = [{"role": "system", "content": SYSTEM}]
    while compactions >= 0:
        number = next(order)
        messages.append({"role": "user", "content": f"File {number}:\n{files[number]}"})
        answer = yield Question(messages=list(messages), tokens=24, full=True, kind="step")
        messages.append({"role": "assistant", "content": answer})
        if sum(len(message["content"]) for message in messages) < threshold * count:
            continue
        compactions -= 1
        if compactions < 0:
            return
        asked = {"role": "user", "content": "Summarise what you have read and done so far."}
        summary = yield Question(messages=[*messages, asked], tokens=96, full=True, kind="summary")
        kept = messages[1 + (len(messages) - 1) // 4 * 2 :]
        told = {"role": "user", "content": f"Summary of the work so far:\n{summary}"}
        messages = [messages[0], told, {"role": "assistant", "content": "Understood."}, *kept]


def _about(document: Document, instruction: str, question: str) -> Messages:
    content = f"{instruction}\n\n{document.text}\n\nQuestion: {question}"
    return [{"role": "user", "content": content}]


def _files(seed: int) -> Iterator[str]:
    writer = DocumentWriter(seed)
    for _ in range(40):
        yield writer.document(paragraphs=3, sentences=8, facts=2).text


def _reads(files: int) -> Iterator[int]:
    """Which file to read at each step: new ones, and every third time an old one."""
    new = 0
    for step in range(10_000):
        if step % 3 == 2 and new > 4:
            yield (step * 7) % (new - 3)
        else:
            yield new % files
            new += 1
