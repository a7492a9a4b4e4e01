"""Workloads for `semblend bench lookup`: donors, a target and a name.

Text uses a Zipf-distributed vocabulary of words of one to three tokens, so that word edits shift
positions as they do in real prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semblend.core.tokens import TokenArray

WORDS = 20_000
VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Donors seen before, and a prompt to plan for."""

    name: str
    donors: tuple[TokenArray, ...]
    target: TokenArray


class Writer:
    """Writes documents as words, and words as tokens. Deterministic for a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        words = np.random.default_rng(0)  # every writer uses the same language
        lengths = words.integers(1, 4, WORDS)
        pieces = words.integers(100, VOCABULARY, (WORDS, 3))
        self._words = [tuple(pieces[i, : lengths[i]].tolist()) for i in range(WORDS)]

    def words(self, count: int) -> list[int]:
        """Draw word numbers. Frequent words have low numbers."""
        drawn = self.rng.zipf(1.2, size=count * 2)
        kept = drawn[drawn < WORDS][:count]
        while len(kept) < count:
            more = self.rng.zipf(1.2, size=count)
            kept = np.concatenate([kept, more[more < WORDS]])[:count]
        return [int(word) for word in kept]

    def tokens(self, words: list[int], limit: int | None = None) -> TokenArray:
        """Encode words as token ids, cut to `limit` tokens."""
        ids = [token for word in words for token in self._words[word]]
        return np.asarray(ids[:limit], dtype=np.int32)

    def text(self, tokens: int) -> TokenArray:
        """Write exactly `tokens` tokens of new text."""
        return self.tokens(self.words(tokens), tokens)

    def edited(self, words: list[int], share: float) -> list[int]:
        """Replace a share of the words."""
        result = list(words)
        for at in self.rng.choice(len(words), int(len(words) * share), replace=False):
            result[at] = int(self.rng.integers(1, WORDS))
        return result


def _join(*parts: TokenArray) -> TokenArray:
    return np.concatenate(parts)


def new_instruction(writer: Writer, tokens: int) -> Workload:
    """The same document after another instruction, with another question."""
    document = writer.text(tokens)
    return Workload(
        name=f"new instruction, {tokens} tokens",
        donors=(_join(writer.text(120), document, writer.text(30)),),
        target=_join(writer.text(200), document, writer.text(64)),
    )


def new_system_prompt(writer: Writer) -> Workload:
    """A document after a new system prompt of 1,200 tokens."""
    document = writer.text(4_000)
    return Workload(
        name="new 1,200-token system prompt",
        donors=(_join(writer.text(50), document),),
        target=_join(writer.text(1_200), document, writer.text(64)),
    )


def shared_wrapper(writer: Writer) -> Workload:
    """Sixty donors with one wrapper. The target contains one of their documents."""
    wrapper = writer.text(400)
    documents = [writer.text(1_500) for _ in range(60)]
    return Workload(
        name="60 donors behind one wrapper",
        donors=tuple(_join(wrapper, document) for document in documents),
        target=_join(writer.text(90), wrapper, documents[37], writer.text(64)),
    )


def unseen_document(writer: Writer) -> Workload:
    """A known document and an unseen one."""
    known = writer.text(2_000)
    return Workload(
        name="known and unseen document",
        donors=(_join(writer.text(80), known),),
        target=_join(writer.text(100), known, writer.text(2_000), writer.text(64)),
    )


def reordered(writer: Writer, count: int, tokens: int, name: str) -> Workload:
    """The passages of one donor in another order."""
    passages = [writer.text(tokens) for _ in range(count)]
    order = writer.rng.permutation(count)
    return Workload(
        name=name,
        donors=(_join(writer.text(100), *passages),),
        target=_join(writer.text(150), *(passages[i] for i in order), writer.text(64)),
    )


def four_donors(writer: Writer) -> Workload:
    """Four documents, a quarter of the target each, from four donors."""
    documents = [writer.text(1_000) for _ in range(4)]
    return Workload(
        name="four documents from four donors",
        donors=tuple(_join(writer.text(60 + 9 * i), doc) for i, doc in enumerate(documents)),
        target=_join(writer.text(100), *documents, writer.text(64)),
    )


def word_edits(writer: Writer, share: float, tokens: int) -> Workload:
    """A share of the words replaced."""
    words = writer.words(tokens // 2)
    return Workload(
        name=f"{share:.0%} of words edited, {tokens} tokens",
        donors=(_join(writer.text(100), writer.tokens(words)),),
        target=_join(writer.text(140), writer.tokens(writer.edited(words, share)), writer.text(64)),
    )


def shifted(writer: Writer, shift: int) -> Workload:
    """The document, moved by a few tokens."""
    document = writer.text(2_000)
    return Workload(
        name=f"shift by {shift}",
        donors=(document,),
        target=_join(writer.text(shift), document, writer.text(20)),
    )


def positives(seed: int) -> list[Workload]:
    """All cases in which something can be reused."""
    make: list[Callable[[Writer], Workload]] = [
        *((lambda w, n=n: new_instruction(w, n)) for n in (4_000, 8_000, 32_000)),
        new_system_prompt,
        shared_wrapper,
        unseen_document,
        lambda w: reordered(w, 15, 250, "15 paragraphs reordered"),
        four_donors,
        *(
            (lambda w, s=s, n=n: word_edits(w, s, n))
            for s in (0.01, 0.05)
            for n in (4_000, 8_000, 32_000)
        ),
        lambda w: reordered(w, 8, 500, "8 segments shuffled"),
        *((lambda w, s=s: shifted(w, s)) for s in (1, 7, 17, 37, 100, 255, 300)),
    ]
    return [build(Writer(seed + number)) for number, build in enumerate(make)]


def negatives(seed: int) -> list[Workload]:
    """Cases that look alike but must not count as reuse."""
    writer = Writer(seed)
    template, topic = writer.text(60), writer.words(150)
    document = writer.words(1_000)
    name = int(writer.rng.integers(1, WORDS))
    about = [name if at % 12 == 0 else word for at, word in enumerate(document)]
    swapped = [name + 1 if word == name else word for word in about]
    shuffled = [document[i] for i in writer.rng.permutation(len(document))]

    def on_topic() -> list[int]:
        return [topic[int(writer.rng.integers(len(topic)))] for _ in range(1_000)]

    tokens = writer.tokens
    return [
        Workload(
            name="other document, same template",
            donors=(_join(template, writer.text(1_500)),),
            target=_join(template, writer.text(1_500)),
        ),
        Workload(name="same topic", donors=(tokens(on_topic()),), target=tokens(on_topic())),
        Workload(name="shuffled words", donors=(tokens(document),), target=tokens(shuffled)),
        Workload(name="entity swap", donors=(tokens(about),), target=tokens(swapped)),
    ]
