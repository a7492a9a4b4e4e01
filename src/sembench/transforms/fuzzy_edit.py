"""fuzzy_edit: a document that was reformatted and touched up."""

from __future__ import annotations

from random import Random

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.texts import join_sentences, lower_first, sentences
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import base_prompt, question_of

_OPENERS = ("In addition, ", "Note that ", "As before, ", "On the whole, ", "According to this, ")
_STRIDE = 6
"""Edit about one sentence in this many, so that runs of sentences survive in between."""


class FuzzyEdit(Transform):
    """Sentences get openers, bullets, dashes and notes."""

    name = "fuzzy_edit"
    summary = "About every sixth sentence of the recipient's document is reworded or reformatted."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "document_revision"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as donor; the recipient's document is edited."""
        question = question_of(record)
        edited, edits = _edit(record.context, tools.random)
        self.require(edits > 0, "the document has no sentence to edit")
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(record.context, question))],
            recipient=base_prompt(edited, question),
            metadata={"hit_class": "semantic", "edits": edits},
        )

    def check_law(self, item: ManifestItem) -> None:
        """It differs, but most of it is still the donor's in runs."""
        self.require_reuse(item, at_least=0.4)


def _edit(text: str, random: Random) -> tuple[str, int]:
    parts = sentences(text)
    # In a short document edit the middle, so that something survives on both sides.
    first = len(parts) // 2 if len(parts) < 2 * _STRIDE else random.randrange(1, _STRIDE)
    edits = 0
    for index in range(first, len(parts), _STRIDE):
        sentence, gap = parts[index]
        if not sentence.strip():
            continue
        parts[index] = (_edit_sentence(sentence, edits, random), gap)
        edits += 1
    return join_sentences(parts), edits


def _edit_sentence(sentence: str, number: int, random: Random) -> str:
    kind = random.choice(("opener", "bullet", "dash", "note"))
    if kind == "dash" and ", " in sentence:
        return sentence.replace(", ", " - and here - ", 1)
    if kind == "bullet":
        return f"* {sentence}"
    if kind == "note":
        return f"{sentence} [note {number + 1}]"
    return random.choice(_OPENERS) + lower_first(sentence)
