"""One request of a workload, in parts, so that an arm can reorder its documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sembench.conversations.messages import ChatMessage
from sembench.conversations.rendering import render
from sembench.model import ManifestItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A retrieved document. `rank` is its place in the canonical order."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An instruction, documents in the order they were retrieved, and a question."""

    name: str
    instruction: str = ""
    passages: tuple[Passage, ...] = ()
    question: str = ""
    answers: tuple[str, ...] = ()
    """What a right answer states; empty if nothing can be checked."""
    rendered: str = ""
    """The whole prompt, for a conversation; it has no documents that could be reordered."""
    shared: bool = False
    """Whether a part of this prompt may have been seen before."""

    @property
    def text(self) -> str:
        """The prompt as the engine gets it."""
        if self.rendered:
            return self.rendered
        body = "\n\n".join(passage.text for passage in self.passages)
        content = f"{self.instruction}\n\n{body}\n\nQuestion: {self.question}"
        return render([ChatMessage(role="user", content=content)])

    def in_canonical_order(self) -> Ask:
        """The same request with its documents sorted by rank: equal sets share a prefix.

        The text differs from the request as asked, so a model may answer otherwise. Its K/V is
        exact for the reordered prompt.
        """
        return replace(self, passages=tuple(sorted(self.passages, key=lambda each: each.rank)))

    def item(self) -> ManifestItem:
        """As an item of a load run: a recipient, and no donor before it."""
        return ManifestItem(
            item_id=self.name,
            dataset="evidence",
            source_id=self.name,
            transform="evidence",
            donor_prompts=(),
            recipient_prompt=self.text,
            input=self.question,
            answers=self.answers,
        )


def items_of(asks: Sequence[Ask], *, reorder: bool) -> list[ManifestItem]:
    """The items a load run sends."""
    return [(ask.in_canonical_order() if reorder else ask).item() for ask in asks]
